// Sums of numbers that edges carry.

#ifndef JAXGRAPH_EDGE_SUM_H_
#define JAXGRAPH_EDGE_SUM_H_

#include "column_rows.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

template <class A, int lanes>
struct EdgeSumOp : VectorSums<A, lanes> {
  using V = Vector<A, lanes>;
  const EdgeSumArguments<A>& a;

  explicit EdgeSumOp(const EdgeSumArguments<A>& a) : a(a) {}

  int64_t StateSize() const { return a.heads; }
  JAXGRAPH_INLINE int Own(int64_t, int64_t) const { return 0; }
  JAXGRAPH_INLINE int64_t Place(int64_t edge) const { return a.edges.Slot(edge) * a.heads; }

  JAXGRAPH_INLINE V Before(int64_t row, int64_t offset) const {
    return a.resume ? Load<A, lanes>(a.y + row * a.heads + offset) : V{};
  }

  JAXGRAPH_INLINE void Add(V& sum, int, int64_t place, int64_t offset) const {
    sum += Load<A, lanes>(a.weights + place + offset);
  }

  JAXGRAPH_INLINE void Write(int64_t row, int64_t offset, const V& sum) const {
    Store<A, lanes>(a.y + row * a.heads + offset, sum);
  }
};

template <class A>
void EdgeSum(const EdgeSumArguments<A>& a, Workers& workers) {
  ReduceColumns<A, kMostVectors, EdgeSumOp>(a, a.heads, a.heads, workers);
}

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_EDGE_SUM_H_
