// Maxima and minima over neighbours, and the gradient of the winners.

#ifndef JAXGRAPH_EXTREMUM_H_
#define JAXGRAPH_EXTREMUM_H_

#include <limits>

#include "columns.h"
#include "kernels.h"
#include "schedule.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

// Vectors of columns processed together: each state is two vectors.
constexpr int kMostStates = 4;

// Lanes where x is better than y; NaN is better than any number.
template <class V>
JAXGRAPH_INLINE auto Beats(const V& x, const V& y, bool maximum) {
  return (maximum ? x > y : x < y) | ((x != x) & (y == y));
}

template <class A, int lanes>
struct Best {
  using V = Vector<A, lanes>;
  V best, count;

  // Merges another state. The state of no edges has the worst number and a count of 0.
  JAXGRAPH_INLINE void Merge(const Best& other, bool maximum) {
    const auto loses = Beats(other.best, best, maximum);
    const auto wins = Beats(best, other.best, maximum);
    count = (loses ? V{} : count) + (wins ? V{} : other.count);
    best = loses ? other.best : best;
  }

  JAXGRAPH_INLINE static Best Nothing(bool maximum) {
    const A worst = std::numeric_limits<A>::infinity();
    return {All<A, lanes>(maximum ? -worst : worst), V{}};
  }
};

template <class T, int lanes>
struct ExtremumOp {
  using A = Accumulator<T>;
  using V = Vector<A, lanes>;
  const ExtremumArguments<T>& a;
  const Columns& columns;

  int64_t StateSize() const { return 2 * a.width; }

  JAXGRAPH_INLINE Best<A, lanes> Single(int64_t neighbor, int64_t offset) const {
    return {Load<A, lanes>(a.x + neighbor * a.width + offset), V{} + A{1}};
  }

  JAXGRAPH_INLINE Best<A, lanes> Before(int64_t row, int64_t offset) const {
    const int64_t place = row * a.width + offset;
    if (a.resume) return {Load<A, lanes>(a.best + place), Load<A, lanes>(a.count + place)};
    if (a.missing != nullptr && a.missing[row]) return Single(row, offset);
    return Best<A, lanes>::Nothing(a.maximum);
  }

  JAXGRAPH_INLINE void Write(int64_t row, int64_t offset, const Best<A, lanes>& state) const {
    const int64_t place = row * a.width + offset;
    Store<A, lanes>(a.best + place, state.best);
    Store<A, lanes>(a.count + place, state.count);
  }

  void Fill(int64_t row, int64_t) const {
    ForEachVector([&](int64_t offset) { Write(row, offset, Before(row, offset)); });
  }

  template <class Function>
  void ForEachVector(Function function) const {
    for (const Run& run : columns.runs) {
      for (int v = 0; v < run.count; ++v) function(run.offset[v]);
    }
  }

  // The states of a run of columns; all are read before any is written.
  template <class Start, class Finish>
  void Reduce(const Span& span, Start start, Finish finish) const {
    for (const Run& run : columns.runs) {
      WithCount<kMostStates>(run.count, [&](auto constant) JAXGRAPH_LAMBDA {
        constexpr int count = decltype(constant)::kValue;
        Best<A, lanes> states[count];
        JAXGRAPH_UNROLL
        for (int v = 0; v < count; ++v) states[v] = start(run.offset[v]);
        for (int64_t edge = span.begin; edge < span.end; ++edge) {
          const int64_t neighbor = a.edges.neighbors[edge];
          JAXGRAPH_UNROLL
          for (int v = 0; v < count; ++v) {
            states[v].Merge(Single(neighbor, run.offset[v]), a.maximum);
          }
        }
        JAXGRAPH_UNROLL
        for (int v = 0; v < count; ++v) finish(run.offset[v], states[v]);
      });
    }
  }

  void Row(int64_t row, const Span& span) const {
    Reduce(
        span, [&](int64_t offset) JAXGRAPH_LAMBDA { return Before(row, offset); },
        [&](int64_t offset, const auto& state) JAXGRAPH_LAMBDA { Write(row, offset, state); });
  }

  // A partial state is best and count of all columns, one after the other.
  void Part(int64_t, const Span& span, A* to) const {
    Reduce(
        span,
        [&](int64_t) JAXGRAPH_LAMBDA { return Best<A, lanes>::Nothing(a.maximum); },
        [&](int64_t offset, const auto& state) JAXGRAPH_LAMBDA {
          Store<A, lanes>(to + offset, state.best);
          Store<A, lanes>(to + a.width + offset, state.count);
        });
  }

  void Join(int64_t row, int64_t, const Parts<A>& parts) const {
    for (const Run& run : columns.runs) {
      Best<A, lanes> joined[kMostStates];
      for (int v = 0; v < run.count; ++v) {
        const int64_t offset = run.offset[v];
        joined[v] = Before(row, offset);
        for (int64_t part = 0; part < parts.count; ++part) {
          const A* from = parts[part] + offset;
          joined[v].Merge({Load<A, lanes>(from), Load<A, lanes>(from + a.width)}, a.maximum);
        }
      }
      for (int v = 0; v < run.count; ++v) Write(row, run.offset[v], joined[v]);
    }
  }
};

template <class T>
void Extremum(const ExtremumArguments<T>& a, Workers& workers) {
  using A = Accumulator<T>;
  if (a.width == 0) return;
  const Columns columns = SplitColumns(1, a.width, LanesFor<A>(a.width), kMostStates);
  WithLanes<A>(columns.lanes, [&](auto constant) {
    const ExtremumOp<T, decltype(constant)::kValue> op{a, columns};
    ReduceRows<A>(Cuts(a.edges, !a.resume, a.width), workers, op);
  });
}

template <class T, int lanes>
struct WinnerOp {
  using A = Accumulator<T>;
  using V = Vector<A, lanes>;
  const WinnerArguments<T>& a;
  const Columns& columns;

  int64_t StateSize() const { return a.width; }

  // The share of the gradient of row `neighbor` for a message x.
  JAXGRAPH_INLINE V Share(int64_t neighbor, int64_t offset, const V& x) const {
    const int64_t place = neighbor * a.width + offset;
    const V y = Load<A, lanes>(a.y + place);
    const auto wins = (x == y) | ((x != x) & (y != y));
    return wins ? Load<A, lanes>(a.gradient + place) : V{};
  }

  JAXGRAPH_INLINE V Before(int64_t row, int64_t offset) const {
    if (a.resume) return Load<A, lanes>(a.dx + row * a.width + offset);
    if (a.missing != nullptr && a.missing[row]) {
      return Share(row, offset, Load<A, lanes>(a.x + row * a.width + offset));
    }
    return V{};
  }

  void Fill(int64_t row, int64_t) const {
    for (const Run& run : columns.runs) {
      for (int v = 0; v < run.count; ++v) {
        Store<A, lanes>(a.dx + row * a.width + run.offset[v], Before(row, run.offset[v]));
      }
    }
  }

  template <class Start, class Finish>
  void Reduce(int64_t row, const Span& span, Start start, Finish finish) const {
    for (const Run& run : columns.runs) {
      WithCount<kMostStates>(run.count, [&](auto constant) JAXGRAPH_LAMBDA {
        constexpr int count = decltype(constant)::kValue;
        V sums[count], x[count];
        JAXGRAPH_UNROLL
        for (int v = 0; v < count; ++v) {
          sums[v] = start(run.offset[v]);
          x[v] = Load<A, lanes>(a.x + row * a.width + run.offset[v]);
        }
        for (int64_t edge = span.begin; edge < span.end; ++edge) {
          JAXGRAPH_UNROLL
          for (int v = 0; v < count; ++v) {
            sums[v] += Share(a.edges.neighbors[edge], run.offset[v], x[v]);
          }
        }
        JAXGRAPH_UNROLL
        for (int v = 0; v < count; ++v) finish(run.offset[v], sums[v]);
      });
    }
  }

  void Row(int64_t row, const Span& span) const {
    Reduce(
        row, span, [&](int64_t offset) JAXGRAPH_LAMBDA { return Before(row, offset); },
        [&](int64_t offset, const V& sum) JAXGRAPH_LAMBDA {
          Store<A, lanes>(a.dx + row * a.width + offset, sum);
        });
  }

  void Part(int64_t row, const Span& span, A* to) const {
    Reduce(
        row, span, [&](int64_t) JAXGRAPH_LAMBDA { return V{}; },
        [&](int64_t offset, const V& sum) JAXGRAPH_LAMBDA { Store<A, lanes>(to + offset, sum); });
  }

  void Join(int64_t row, int64_t, const Parts<A>& parts) const {
    for (const Run& run : columns.runs) {
      V sums[kMostStates];
      for (int v = 0; v < run.count; ++v) {
        sums[v] = Before(row, run.offset[v]);
        for (int64_t part = 0; part < parts.count; ++part) {
          sums[v] += Load<A, lanes>(parts[part] + run.offset[v]);
        }
      }
      for (int v = 0; v < run.count; ++v) {
        Store<A, lanes>(a.dx + row * a.width + run.offset[v], sums[v]);
      }
    }
  }
};

template <class T>
void Winner(const WinnerArguments<T>& a, Workers& workers) {
  using A = Accumulator<T>;
  if (a.width == 0) return;
  const Columns columns = SplitColumns(1, a.width, LanesFor<A>(a.width), kMostStates);
  WithLanes<A>(columns.lanes, [&](auto constant) {
    const WinnerOp<T, decltype(constant)::kValue> op{a, columns};
    ReduceRows<A>(Cuts(a.edges, !a.resume, 2 * a.width), workers, op);
  });
}

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_EXTREMUM_H_
