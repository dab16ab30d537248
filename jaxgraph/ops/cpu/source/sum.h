// Sums over neighbours: y_i = sum_{e: j -> i} w_e x_j.

#ifndef JAXGRAPH_SUM_H_
#define JAXGRAPH_SUM_H_

#include "columns.h"
#include "kernels.h"
#include "schedule.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

// How many edges ahead, in this row or the next ones, rows are fetched into the cache.
constexpr int64_t kFetchAhead = 8;

// `count` sums over the same edges, `unrolled` edges at a time so that an addition need not wait
// for the last one.
template <class T, int lanes, int count, bool weighted>
struct RunningSum {
  using A = Accumulator<T>;
  using V = Vector<A, lanes>;
  static constexpr int kUnrolled = count <= 2 ? 4 : count <= 4 ? 2 : 1;
  V sums[kUnrolled][count];

  JAXGRAPH_INLINE void Clear() {
    JAXGRAPH_UNROLL
    for (auto& some : sums) {
      JAXGRAPH_UNROLL
      for (auto& sum : some) sum = V{};
    }
  }

  JAXGRAPH_INLINE void Add(const SumArguments<T>& a, const Run& run, int64_t edge, V (&to)[count]) {
    const T* x = a.x + int64_t{a.edges.neighbors[edge]} * a.heads * a.width;
    const T* weights = weighted ? a.weights + a.edges.Slot(edge) * a.heads : nullptr;
    JAXGRAPH_UNROLL
    for (int v = 0; v < count; ++v) {
      V value = Load<A, lanes>(x + run.offset[v]);
      if constexpr (weighted) value *= Load<A, 1>(weights + run.head[v])[0];
      to[v] += value;
    }
  }

  JAXGRAPH_INLINE void AddAll(const SumArguments<T>& a, const Run& run, int64_t begin, int64_t end) {
    int64_t edge = begin;
    for (; edge + kUnrolled <= end; edge += kUnrolled) {
      JAXGRAPH_UNROLL
      for (int u = 0; u < kUnrolled; ++u) {
        Fetch(a, run, std::min(edge + u + kFetchAhead, a.edges.num_slots - 1));
        Add(a, run, edge + u, sums[u]);
      }
    }
    for (; edge < end; ++edge) Add(a, run, edge, sums[0]);
  }

  JAXGRAPH_INLINE static void Fetch(const SumArguments<T>& a, const Run& run, int64_t edge) {
    const T* x = a.x + int64_t{a.edges.neighbors[edge]} * a.heads * a.width;
    JAXGRAPH_UNROLL
    for (int v = 0; v < count; ++v) __builtin_prefetch(x + run.offset[v]);
  }

  JAXGRAPH_INLINE V Result(int v) const {
    if constexpr (kUnrolled == 1) return sums[0][v];
    if constexpr (kUnrolled == 2) return sums[0][v] + sums[1][v];
    if constexpr (kUnrolled == 4) return (sums[0][v] + sums[1][v]) + (sums[2][v] + sums[3][v]);
  }
};

template <class T, int lanes, bool weighted>
struct SumOp {
  using A = Accumulator<T>;
  using V = Vector<A, lanes>;
  const SumArguments<T>& a;
  const Columns& columns;

  int64_t StateSize() const { return a.heads * a.width; }

  // What a row holds before any edge: V of its columns at `offset`.
  JAXGRAPH_INLINE V Before(int64_t row, int64_t offset) const {
    const int64_t place = row * StateSize() + offset;
    if (a.resume) return Load<A, lanes>(a.y + place);
    if (a.missing != nullptr && a.missing[row]) return Load<A, lanes>(a.x + place);
    return V{};
  }

  void Fill(int64_t row, int64_t) const {
    for (const Run& run : columns.runs) {
      for (int v = 0; v < run.count; ++v) {
        Store<A, lanes>(a.y + row * StateSize() + run.offset[v], Before(row, run.offset[v]));
      }
    }
  }

  void Row(int64_t row, const Span& span) const {
    for (const Run& run : columns.runs) {
      WithCount<kMostVectors>(run.count, [&](auto constant) JAXGRAPH_LAMBDA {
        constexpr int count = decltype(constant)::kValue;
        RunningSum<T, lanes, count, weighted> sum;
        sum.Clear();
        V before[count];
        JAXGRAPH_UNROLL
        for (int v = 0; v < count; ++v) before[v] = Before(row, run.offset[v]);
        sum.AddAll(a, run, span.begin, span.end);
        A* y = a.y + row * StateSize();
        JAXGRAPH_UNROLL
        for (int v = 0; v < count; ++v) Store<A, lanes>(y + run.offset[v], before[v] + sum.Result(v));
      });
    }
  }

  void Part(int64_t, const Span& span, A* state) const {
    for (const Run& run : columns.runs) {
      WithCount<kMostVectors>(run.count, [&](auto constant) JAXGRAPH_LAMBDA {
        constexpr int count = decltype(constant)::kValue;
        RunningSum<T, lanes, count, weighted> sum;
        sum.Clear();
        sum.AddAll(a, run, span.begin, span.end);
        JAXGRAPH_UNROLL
        for (int v = 0; v < count; ++v) Store<A, lanes>(state + run.offset[v], sum.Result(v));
      });
    }
  }

  void Join(int64_t row, int64_t, const Parts<A>& parts) const {
    for (const Run& run : columns.runs) {
      V sums[kMostVectors];
      for (int v = 0; v < run.count; ++v) {
        sums[v] = Before(row, run.offset[v]);
        for (int64_t part = 0; part < parts.count; ++part) {
          sums[v] += Load<A, lanes>(parts[part] + run.offset[v]);
        }
      }
      A* y = a.y + row * StateSize();
      for (int v = 0; v < run.count; ++v) Store<A, lanes>(y + run.offset[v], sums[v]);
    }
  }
};

template <class T>
void Sum(const SumArguments<T>& a, Workers& workers) {
  using A = Accumulator<T>;
  // Without weights heads do not matter, and longer runs of columns are faster.
  SumArguments<T> joined = a;
  if (a.weights == nullptr) {
    joined.width = a.heads * a.width;
    joined.heads = 1;
  }
  if (joined.heads * joined.width == 0) return;
  const Columns columns =
      SplitColumns(joined.heads, joined.width, LanesFor<A>(joined.width), kMostVectors);
  WithLanes<A>(columns.lanes, [&](auto constant) {
    constexpr int lanes = decltype(constant)::kValue;
    const auto reduce = [&](const auto& op) {
      ReduceRows<A>(Cuts(a.edges, !a.resume, op.StateSize()), workers, op);
    };
    if (a.weights == nullptr) {
      reduce(SumOp<T, lanes, false>{joined, columns});
    } else {
      reduce(SumOp<T, lanes, true>{joined, columns});
    }
  });
}

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_SUM_H_
