// Sums of numbers that edges carry.

#ifndef JAXGRAPH_EDGE_SUM_H_
#define JAXGRAPH_EDGE_SUM_H_

#include <algorithm>

#include "columns.h"
#include "kernels.h"
#include "schedule.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

template <class A, int lanes>
struct EdgeSumOp {
  using V = Vector<A, lanes>;
  const EdgeSumArguments<A>& a;
  const Columns& columns;

  int64_t StateSize() const { return a.heads; }

  void Fill(int64_t row, int64_t) const { std::fill_n(a.y + row * a.heads, a.heads, A{0}); }

  void Reduce(int64_t begin, int64_t end, const A* before, A* y) const {
    for (const Run& run : columns.runs) {
      WithCount<kMostVectors>(run.count, [&](auto constant) JAXGRAPH_LAMBDA {
        constexpr int count = decltype(constant)::kValue;
        V sums[count];
        JAXGRAPH_UNROLL
        for (int v = 0; v < count; ++v) {
          sums[v] = before == nullptr ? V{} : Load<A, lanes>(before + run.offset[v]);
        }
        for (int64_t edge = begin; edge < end; ++edge) {
          const A* weights = a.weights + a.edges.Slot(edge) * a.heads;
          JAXGRAPH_UNROLL
          for (int v = 0; v < count; ++v) sums[v] += Load<A, lanes>(weights + run.offset[v]);
        }
        JAXGRAPH_UNROLL
        for (int v = 0; v < count; ++v) Store<A, lanes>(y + run.offset[v], sums[v]);
      });
    }
  }

  void Row(int64_t row, const Span& span) const {
    A* y = a.y + row * a.heads;
    Reduce(span.begin, span.end, a.resume ? y : nullptr, y);
  }

  void Part(int64_t, const Span& span, A* state) const {
    Reduce(span.begin, span.end, nullptr, state);
  }

  void Join(int64_t row, int64_t piece, const Parts<A>& parts) const {
    if (!a.resume) Fill(row, piece);
    A* y = a.y + row * a.heads;
    for (int64_t part = 0; part < parts.count; ++part) {
      const A* from = parts[part];
      for (int64_t head = 0; head < a.heads; ++head) y[head] += from[head];
    }
  }
};

template <class A>
void EdgeSum(const EdgeSumArguments<A>& a, Workers& workers) {
  if (a.heads == 0) return;
  const Columns columns = SplitColumns(1, a.heads, LanesFor<A>(a.heads), kMostVectors);
  WithLanes<A>(columns.lanes, [&](auto constant) {
    const EdgeSumOp<A, decltype(constant)::kValue> op{a, columns};
    ReduceRows<A>(Cuts(a.edges, !a.resume, a.heads), workers, op);
  });
}

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_EDGE_SUM_H_
