// The types of numbers that arrays hold.

#ifndef JAXGRAPH_NUMBERS_H_
#define JAXGRAPH_NUMBERS_H_

#include <cstdint>

namespace jaxgraph {

// The upper half of a float.
struct BFloat16 {
  uint16_t bits;
};

// The type in which sums of a stored type are kept.
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
