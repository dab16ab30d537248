// Maxima and minima over neighbours, and which of them won.

#ifndef JAXGRAPH_EXTREMUM_H_
#define JAXGRAPH_EXTREMUM_H_

#include <limits>

#include "columns.h"
#include "kernels.h"
#include "schedule.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

// Vectors of columns handled together: each state is three vectors.
constexpr int kMostStates = 4;

// What identifies an edge among those of one receiver, as `Extremum.per_edge` has it.
JAXGRAPH_INLINE uint32_t Identity(int32_t id, const int32_t* repetition, int64_t slot) {
  const uint32_t again = repetition == nullptr ? 0 : static_cast<uint32_t>(repetition[slot]);
  return static_cast<uint32_t>(id) + again * 0x9E3779B1u;
}

// The unsigned integer as wide as A, to hold identities beside numbers.
template <class A>
using Bits = std::conditional_t<sizeof(A) == 4, uint32_t, uint64_t>;

template <class A, int lanes>
struct Best {
  using V = Vector<A, lanes>;
  using U = Vector<Bits<A>, lanes>;
  V best, count;
  U identity;

  // Takes in another state, the identity of which is kept only where it alone wins.
  JAXGRAPH_INLINE void Merge(const Best& other, bool maximum) {
    const auto better = maximum ? other.best > best : other.best < best;
    // Nothing has come in where the count is 0, whatever stands there.
    const auto wins = better | ((count == V{}) & (other.count > V{}));
    const auto ties = (other.best == best) & ~wins;
    count = wins ? other.count : (ties ? count + other.count : count);
    identity = wins ? other.identity : identity;
    best = wins ? other.best : best;
  }

  JAXGRAPH_INLINE static Best Nothing(bool maximum) {
    const A worst = std::numeric_limits<A>::infinity();
    return {All<A, lanes>(maximum ? -worst : worst), V{}, U{}};
  }
};

template <class T, int lanes>
struct ExtremumOp {
  using A = Accumulator<T>;
  using V = Vector<A, lanes>;
  using U = typename Best<A, lanes>::U;
  using N = Vector<uint32_t, lanes>;
  const ExtremumArguments<T>& a;
  const Columns& columns;

  int64_t StateSize() const { return 3 * a.width; }

  JAXGRAPH_INLINE Best<A, lanes> Single(int64_t neighbor, int64_t slot, int64_t offset) const {
    const Bits<A> identity = Identity(a.ids[neighbor], a.repetition, slot);
    return {Load<A, lanes>(a.x + neighbor * a.width + offset), V{} + A{1}, U{} + identity};
  }

  JAXGRAPH_INLINE Best<A, lanes> Before(int64_t row, int64_t offset) const {
    const int64_t place = row * a.width + offset;
    if (a.resume) {
      const auto identity = LoadBits<N>(a.identity + place);
      return {Load<A, lanes>(a.best + place), Load<A, lanes>(a.count + place),
              __builtin_convertvector(identity, U)};
    }
    if (a.missing != nullptr && a.missing[row]) {
      const Bits<A> identity = Identity(a.ids[row], nullptr, 0);
      return {Load<A, lanes>(a.x + place), V{} + A{1}, U{} + identity};
    }
    return Best<A, lanes>::Nothing(a.maximum);
  }

  JAXGRAPH_INLINE void Write(int64_t row, int64_t offset, const Best<A, lanes>& state) const {
    const int64_t place = row * a.width + offset;
    Store<A, lanes>(a.best + place, state.best);
    Store<A, lanes>(a.count + place, state.count);
    const N identity = __builtin_convertvector(state.identity, N);
    std::memcpy(a.identity + place, &identity, sizeof(identity));
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
          const int64_t slot = a.edges.Slot(edge);
          JAXGRAPH_UNROLL
          for (int v = 0; v < count; ++v) {
            states[v].Merge(Single(neighbor, slot, run.offset[v]), a.maximum);
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

  // A partial state is best, count and identity of all columns, one behind the other.
  void Part(int64_t, const Span& span, A* to) const {
    Reduce(
        span,
        [&](int64_t) JAXGRAPH_LAMBDA { return Best<A, lanes>::Nothing(a.maximum); },
        [&](int64_t offset, const auto& state) JAXGRAPH_LAMBDA {
          Store<A, lanes>(to + offset, state.best);
          Store<A, lanes>(to + a.width + offset, state.count);
          std::memcpy(to + 2 * a.width + offset, &state.identity, sizeof(state.identity));
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
          joined[v].Merge({Load<A, lanes>(from), Load<A, lanes>(from + a.width),
                           LoadBits<U>(from + 2 * a.width)},
                          a.maximum);
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
  using U = Vector<Bits<A>, lanes>;
  const WinnerArguments<T>& a;
  const Columns& columns;

  int64_t StateSize() const { return a.width; }

  // The gradient that row `neighbor` gives to a message x with this identity.
  JAXGRAPH_INLINE V Share(int64_t neighbor, Bits<A> own, int64_t offset, const V& x) const {
    const int64_t place = neighbor * a.width + offset;
    const auto identity =
        __builtin_convertvector(LoadBits<Vector<uint32_t, lanes>>(a.identity + place), U);
    const auto several =
        __builtin_convertvector(LoadBits<Vector<uint8_t, lanes>>(a.several + place), U);
    const auto equal = x == Load<A, lanes>(a.y + place);
    const auto wins = (identity == U{} + own) | ((several != U{}) & equal);
    return wins ? Load<A, lanes>(a.gradient + place) : V{};
  }

  JAXGRAPH_INLINE V Before(int64_t row, int64_t offset) const {
    if (a.resume) return Load<A, lanes>(a.dx + row * a.width + offset);
    if (a.missing != nullptr && a.missing[row]) {
      const V x = Load<A, lanes>(a.x + row * a.width + offset);
      return Share(row, Identity(a.ids[row], nullptr, 0), offset, x);
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
          const Bits<A> own = Identity(a.ids[row], a.repetition, a.edges.Slot(edge));
          JAXGRAPH_UNROLL
          for (int v = 0; v < count; ++v) {
            sums[v] += Share(a.edges.neighbors[edge], own, run.offset[v], x[v]);
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
    ReduceRows<A>(Cuts(a.edges, !a.resume, 4 * a.width), workers, op);
  });
}

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_EXTREMUM_H_
