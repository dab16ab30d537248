// Maxima and minima over neighbours, and the gradient of the winners.

#ifndef JAXGRAPH_EXTREMUM_H_
#define JAXGRAPH_EXTREMUM_H_

#include <limits>

#include "column_rows.h"

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
  using State = Best<A, lanes>;
  const ExtremumArguments<T>& a;

  explicit ExtremumOp(const ExtremumArguments<T>& a) : a(a) {}

  int64_t StateSize() const { return 2 * a.width; }
  JAXGRAPH_INLINE int Own(int64_t, int64_t) const { return 0; }
  JAXGRAPH_INLINE int64_t Place(int64_t edge) const { return a.edges.neighbors[edge]; }
  JAXGRAPH_INLINE State Nothing() const { return State::Nothing(a.maximum); }

  JAXGRAPH_INLINE State Single(int64_t neighbor, int64_t offset) const {
    return {Load<A, lanes>(a.x + neighbor * a.width + offset), Vector<A, lanes>{} + A{1}};
  }

  JAXGRAPH_INLINE State Before(int64_t row, int64_t offset) const {
    const int64_t place = row * a.width + offset;
    if (a.resume) return {Load<A, lanes>(a.best + place), Load<A, lanes>(a.count + place)};
    return a.missing != nullptr && a.missing[row] ? Single(row, offset) : Nothing();
  }

  JAXGRAPH_INLINE void Add(State& state, int, int64_t neighbor, int64_t offset) const {
    state.Merge(Single(neighbor, offset), a.maximum);
  }

  JAXGRAPH_INLINE void Merge(State& state, const State& other) const {
    state.Merge(other, a.maximum);
  }

  JAXGRAPH_INLINE void Write(int64_t row, int64_t offset, const State& state) const {
    const int64_t place = row * a.width + offset;
    Store<A, lanes>(a.best + place, state.best);
    Store<A, lanes>(a.count + place, state.count);
  }

  // A partial state is best and count of all columns, one after the other.
  JAXGRAPH_INLINE void Save(A* to, int64_t offset, const State& state) const {
    Store<A, lanes>(to + offset, state.best);
    Store<A, lanes>(to + a.width + offset, state.count);
  }

  JAXGRAPH_INLINE State Saved(const A* from, int64_t offset) const {
    return {Load<A, lanes>(from + offset), Load<A, lanes>(from + a.width + offset)};
  }
};

template <class T>
void Extremum(const ExtremumArguments<T>& a, Workers& workers) {
  ReduceColumns<T, kMostStates, ExtremumOp>(a, a.width, a.width, workers);
}

template <class T, int lanes>
struct WinnerOp : VectorSums<Accumulator<T>, lanes> {
  using A = Accumulator<T>;
  using V = Vector<A, lanes>;
  const WinnerArguments<T>& a;

  explicit WinnerOp(const WinnerArguments<T>& a) : a(a) {}

  int64_t StateSize() const { return a.width; }
  JAXGRAPH_INLINE int64_t Place(int64_t edge) const { return a.edges.neighbors[edge]; }

  JAXGRAPH_INLINE V Own(int64_t row, int64_t offset) const {
    return Load<A, lanes>(a.x + row * a.width + offset);
  }

  // The share of the gradient of row `neighbor` for a message x.
  JAXGRAPH_INLINE V Share(int64_t neighbor, int64_t offset, const V& x) const {
    const int64_t place = neighbor * a.width + offset;
    const V y = Load<A, lanes>(a.y + place);
    const auto wins = (x == y) | ((x != x) & (y != y));
    return wins ? Load<A, lanes>(a.gradient + place) : V{};
  }

  JAXGRAPH_INLINE V Before(int64_t row, int64_t offset) const {
    if (a.resume) return Load<A, lanes>(a.dx + row * a.width + offset);
    const bool adds_own = a.missing != nullptr && a.missing[row];
    return adds_own ? Share(row, offset, Own(row, offset)) : V{};
  }

  JAXGRAPH_INLINE void Add(V& sum, const V& x, int64_t neighbor, int64_t offset) const {
    sum += Share(neighbor, offset, x);
  }

  JAXGRAPH_INLINE void Write(int64_t row, int64_t offset, const V& sum) const {
    Store<A, lanes>(a.dx + row * a.width + offset, sum);
  }
};

template <class T>
void Winner(const WinnerArguments<T>& a, Workers& workers) {
  ReduceColumns<T, kMostStates, WinnerOp>(a, a.width, 2 * a.width, workers);
}

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_EXTREMUM_H_
