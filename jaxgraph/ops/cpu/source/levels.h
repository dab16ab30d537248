// The levels of the instruction set for which the kernels are compiled: on x86-64 those of its
// psABI, elsewhere one.

#ifndef JAXGRAPH_LEVELS_H_
#define JAXGRAPH_LEVELS_H_

#include "kernels.h"

namespace jaxgraph {

#define JAXGRAPH_DECLARE_LEVEL(level) \
  namespace level {                   \
  template <class T>                  \
  const Kernels<T>& LevelKernels();   \
  }

JAXGRAPH_DECLARE_LEVEL(baseline)
JAXGRAPH_DECLARE_LEVEL(avx2)
JAXGRAPH_DECLARE_LEVEL(avx512)

#undef JAXGRAPH_DECLARE_LEVEL

}  // namespace jaxgraph

#endif  // JAXGRAPH_LEVELS_H_
