// Sums over neighbours: y_i = sum_{e: j -> i} w_e x_j.

#ifndef JAXGRAPH_SUM_H_
#define JAXGRAPH_SUM_H_

#include "columns.h"
#include "kernels.h"
#include "schedule.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

// The terms of the sums.
template <class T>
struct Terms {
  const T* x;
  const T* weights;
  const int32_t* neighbors;
  const int32_t* slots;
  int64_t last;
  int64_t heads;
  int64_t stride;

  explicit Terms(const SumArguments<T>& a)
      : x(a.x),
        weights(a.weights),
        neighbors(a.edges.neighbors),
        slots(a.edges.slots),
        last(a.edges.num_slots - 1),
        heads(a.heads),
        stride(a.heads * a.width) {}

  JAXGRAPH_INLINE const T* Row(int64_t edge) const { return x + neighbors[edge] * stride; }
  JAXGRAPH_INLINE const T* Weights(int64_t edge) const {
    return weights + (slots == nullptr ? edge : slots[edge]) * heads;
  }
};

// `count` sums over the same edges, `kUnrolled` edges at a time so that additions need not wait for
// each other.
template <class T, int lanes, int count, bool weighted>
struct RunningSum {
  using A = Accumulator<T>;
  using V = Vector<A, lanes>;
  static constexpr int kUnrolled = count <= 4 ? 2 : 1;
  // Where a row has one or two cache lines, the processor itself keeps enough loads in flight.
  static constexpr bool kFetches = count > 2;
  // Edges ahead, in this row or later ones, at which rows are fetched into the cache.
  static constexpr int64_t kFetchAhead = count > 4 ? 8 : 16;
  V sums[kUnrolled][count];

  JAXGRAPH_INLINE void Clear() {
    JAXGRAPH_UNROLL
    for (auto& some : sums) {
      JAXGRAPH_UNROLL
      for (auto& sum : some) sum = V{};
    }
  }

  JAXGRAPH_INLINE static void Add(const Terms<T>& terms, const Run& run, int64_t edge,
                                  V (&to)[count]) {
    const T* x = terms.Row(edge);
    const T* weights = weighted ? terms.Weights(edge) : nullptr;
    JAXGRAPH_UNROLL
    for (int v = 0; v < count; ++v) {
      V value = Load<A, lanes>(x + run.offset[v]);
      if constexpr (weighted) value *= Load<A, 1>(weights + run.head[v])[0];
      to[v] += value;
    }
  }

  JAXGRAPH_INLINE void AddAll(const Terms<T>& terms, const Run& run, int64_t begin, int64_t end) {
    int64_t edge = begin;
    for (; edge + kUnrolled <= end; edge += kUnrolled) {
      JAXGRAPH_UNROLL
      for (int u = 0; u < kUnrolled; ++u) {
        if constexpr (kFetches) Fetch(terms, run, std::min(edge + u + kFetchAhead, terms.last));
        Add(terms, run, edge + u, sums[u]);
      }
    }
    for (; edge < end; ++edge) Add(terms, run, edge, sums[0]);
  }

  JAXGRAPH_INLINE static void Fetch(const Terms<T>& terms, const Run& run, int64_t edge) {
    const T* x = terms.Row(edge);
    JAXGRAPH_UNROLL
    for (int v = 0; v < count; ++v) __builtin_prefetch(x + run.offset[v]);
  }

  JAXGRAPH_INLINE V Result(int v) const {
    if constexpr (kUnrolled == 1) return sums[0][v];
    if constexpr (kUnrolled == 2) return sums[0][v] + sums[1][v];
  }
};

// `only`: the number of vectors in the only run of columns; 0: there may be several runs.
template <class T, int lanes, bool weighted, int only>
struct SumOp {
  using A = Accumulator<T>;
  using V = Vector<A, lanes>;
  const SumArguments<T> a;
  const Terms<T> terms;
  const Columns& columns;
  const Run first;

  SumOp(const SumArguments<T>& a, const Columns& columns)
      : a(a), terms(a), columns(columns), first(columns.runs[0]) {}

  int64_t StateSize() const { return terms.stride; }

  // function(count, run) for every run of columns.
  template <class Function>
  JAXGRAPH_INLINE void ForEachRun(Function function) const {
    if constexpr (only > 0) {
      function(Constant<only>{}, first);
    } else {
      for (const Run& run : columns.runs) {
        WithCount<kMostVectors>(run.count,
                                [&](auto count) JAXGRAPH_LAMBDA { function(count, run); });
      }
    }
  }

  // The initial value of a row: V of its columns at `offset`.
  JAXGRAPH_INLINE V Before(int64_t row, int64_t offset) const {
    const int64_t place = row * StateSize() + offset;
    if (a.resume) return Load<A, lanes>(a.y + place);
    if (a.missing != nullptr && a.missing[row]) return Load<A, lanes>(a.x + place);
    return V{};
  }

  JAXGRAPH_INLINE void Fill(int64_t row, int64_t) const {
    ForEachRun([&](auto constant, const Run& run) JAXGRAPH_LAMBDA {
      constexpr int count = decltype(constant)::kValue;
      A* y = a.y + row * StateSize();
      JAXGRAPH_UNROLL
      for (int v = 0; v < count; ++v) {
        Store<A, lanes>(y + run.offset[v], Before(row, run.offset[v]));
      }
    });
  }

  JAXGRAPH_INLINE void Row(int64_t row, const Span& span) const {
    ForEachRun([&](auto constant, const Run& run) JAXGRAPH_LAMBDA {
      constexpr int count = decltype(constant)::kValue;
      RunningSum<T, lanes, count, weighted> sum;
      sum.Clear();
      V before[count];
      JAXGRAPH_UNROLL
      for (int v = 0; v < count; ++v) before[v] = Before(row, run.offset[v]);
      sum.AddAll(terms, run, span.begin, span.end);
      A* y = a.y + row * StateSize();
      JAXGRAPH_UNROLL
      for (int v = 0; v < count; ++v) Store<A, lanes>(y + run.offset[v], before[v] + sum.Result(v));
    });
  }

  void Part(int64_t, const Span& span, A* state) const {
    ForEachRun([&](auto constant, const Run& run) JAXGRAPH_LAMBDA {
      constexpr int count = decltype(constant)::kValue;
      RunningSum<T, lanes, count, weighted> sum;
      sum.Clear();
      sum.AddAll(terms, run, span.begin, span.end);
      JAXGRAPH_UNROLL
      for (int v = 0; v < count; ++v) Store<A, lanes>(state + run.offset[v], sum.Result(v));
    });
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
    const auto with = [&](auto only) {
      constexpr int count = decltype(only)::kValue;
      if (a.weights == nullptr) {
        reduce(SumOp<T, lanes, false, count>(joined, columns));
      } else {
        reduce(SumOp<T, lanes, true, count>(joined, columns));
      }
    };
    if (!kIsFast<A> || columns.runs.size() > 1) return with(Constant<0>{});
    if constexpr (kIsFast<A>) WithCount<kMostVectors>(columns.runs[0].count, with);
  });
}

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_SUM_H_
