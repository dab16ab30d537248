// Dot products along edges: y_e = <x_i, z_j> for e: j -> i, per head.

#ifndef JAXGRAPH_PRODUCT_H_
#define JAXGRAPH_PRODUCT_H_

#include "kernels.h"
#include "schedule.h"
#include "vectors.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

// <x, z> over `width` numbers.
template <class T>
JAXGRAPH_INLINE Accumulator<T> Dot(const T* x, const T* z, int64_t width) {
  using A = Accumulator<T>;
  return TotalOver<A>(width, [&](auto constant, int64_t column) JAXGRAPH_LAMBDA {
    constexpr int lanes = decltype(constant)::kValue;
    return Load<A, lanes>(x + column) * Load<A, lanes>(z + column);
  });
}

template <class T>
struct ProductOp {
  using A = Accumulator<T>;
  const ProductArguments<T>& a;

  int64_t StateSize() const { return 0; }

  void Fill(int64_t, int64_t) const {}

  void Row(int64_t row, const Span& span) const {
    const int64_t stride = a.heads * a.width;
    const T* x = a.x + row * stride;
    for (int64_t edge = span.begin; edge < span.end; ++edge) {
      const int64_t ahead = std::min(edge + 8, a.edges.num_slots - 1);
      const T* next = a.z + int64_t{a.edges.neighbors[ahead]} * stride;
      for (int64_t c = 0; c < stride; c += 64 / int64_t{sizeof(T)}) __builtin_prefetch(next + c);
      const T* z = a.z + int64_t{a.edges.neighbors[edge]} * stride;
      T* y = a.y + a.edges.Slot(edge) * a.heads;
      for (int64_t head = 0; head < a.heads; ++head) {
        const Vector<A, 1> product{Dot(x + head * a.width, z + head * a.width, a.width)};
        Store<A, 1>(y + head, product);
      }
    }
  }

  void Part(int64_t row, const Span& span, A*) const { Row(row, span); }
  void Join(int64_t, int64_t, const Parts<A>&) const {}
};

template <class T>
void Product(const ProductArguments<T>& a, Workers& workers) {
  const Cuts cuts(a.edges, false, a.heads * a.width);
  ReduceRows<Accumulator<T>>(cuts, workers, ProductOp<T>{a});
}

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_PRODUCT_H_
