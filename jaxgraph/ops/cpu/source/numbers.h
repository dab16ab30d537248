// The types of the numbers in arrays.

#ifndef JAXGRAPH_NUMBERS_H_
#define JAXGRAPH_NUMBERS_H_

#include <cstdint>

namespace jaxgraph {

// The upper half of a float.
struct BFloat16 {
  uint16_t bits;
};

// The accumulation type of a stored type.
template <class T>
struct AccumulatorOf {
  using type = T;
};
template <>
struct AccumulatorOf<BFloat16> {
  using type = float;
};
template <class T>
using Accumulator = typename AccumulatorOf<T>::type;

}  // namespace jaxgraph

#endif  // JAXGRAPH_NUMBERS_H_
