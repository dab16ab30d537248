// The kernels for one level of the instruction set: compiled once per level, under another name.

#ifndef JAXGRAPH_LEVEL
#error "define JAXGRAPH_LEVEL as the name of the level"
#endif

#include "attention.h"
#include "attention_gradient.h"
#include "edge_sum.h"
#include "extremum.h"
#include "hidden_gradient.h"
#include "kernels.h"
#include "levels.h"
#include "product.h"
#include "program.h"
#include "row_product.h"
#include "sum.h"
#include "weight_gradient.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

template <class T>
const Kernels<T>& LevelKernels() {
  static constexpr Kernels<T> kernels{
      &Sum<T>,    &Product<T>,        &Extremum<T>,       &Winner<T>,
      &Attend<T>, &AttendGradient<T>, &HiddenGradient<T>, &EdgeSum<Accumulator<T>>,
      &WeightGradient<T>, &MapRows<T>,        &RunProgram<Accumulator<T>>};
  return kernels;
}

template const Kernels<float>& LevelKernels<float>();
template const Kernels<double>& LevelKernels<double>();
template const Kernels<BFloat16>& LevelKernels<BFloat16>();

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph
