// Attention, forward: one pass over the edges, with a maximum that runs with them.

#ifndef JAXGRAPH_ATTENTION_H_
#define JAXGRAPH_ATTENTION_H_

#include "dropout.h"
#include "logits.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

// `peak`, and 0 where nothing but -inf was seen, since exp(-inf - -inf) would be NaN.
template <class A>
JAXGRAPH_INLINE A Finite(A peak) {
  return peak == -std::numeric_limits<A>::infinity() ? A{0} : peak;
}

// What a sum of powers relative to `peak` is multiplied with to be relative to `top`.
template <class A>
JAXGRAPH_INLINE A Rescale(A peak, A top) {
  return peak == top ? A{1} : Exp<1>(Vector<A, 1>{peak - Finite(top)})[0];
}

template <class T>
struct AttentionOp {
  using A = Accumulator<T>;
  using V = Vector<A, kLanes<A>>;
  const AttentionArguments<T>& a;
  WeightedSum<T> weighted_sum;
  TileShape shape;
  Slopes<A> slopes;

  explicit AttentionOp(const AttentionArguments<T>& a)
      : a(a), weighted_sum(a.heads, a.width), shape(a.heads), slopes(a.logits) {}

  struct State {
    A* peak;
    A* total;
    A* sums;
  };

  int64_t StateSize() const { return a.heads * (2 + a.width); }

  State At(int64_t row) const {
    const int64_t place = row * a.heads;
    return {a.peak + place, a.total + place, a.sums + place * a.width};
  }

  State In(A* memory) const { return {memory, memory + a.heads, memory + 2 * a.heads}; }

  void Start(const State& state) const {
    std::fill_n(state.peak, a.heads, -std::numeric_limits<A>::infinity());
    std::fill_n(state.total, a.heads, A{0});
    std::fill_n(state.sums, a.heads * a.width, A{0});
  }

  void Take(int64_t row, const Tile& tile, const State& state) const {
    A numbers[kTileNumbers];
    A scale[kMostHeads];
    TileHidden(a.logits, row, a.width, tile, shape, numbers);
    TileLogits(slopes, tile, shape, numbers, numbers);
    bool rescaled = false;
    for (int64_t head = 0; head < a.heads; ++head) {
      A* logits = numbers + head * shape.stride;
      const A before = state.peak[head];
      const A top = Top(tile, logits, before);
      // Where nothing came before, there is nothing to rescale.
      scale[head] = state.total[head] == 0 ? A{1} : Rescale(before, top);
      rescaled |= scale[head] != 1;
      state.peak[head] = top;
      state.total[head] = state.total[head] * scale[head] + Powers(tile, Finite(top), logits);
    }
    if (a.dropout.seed != nullptr) {
      DropTile(a.dropout, tile, row, false, shape, numbers, numbers);
    }
    const bool fetch = a.logits.kind == Attention::kGat;
    weighted_sum({tile, shape, numbers}, a.values, fetch, rescaled ? scale : nullptr, state.sums);
  }

  JAXGRAPH_INLINE static A Top(const Tile& tile, const A* logits, A before) {
    V top = All<A, kLanes<A>>(before);
    for (int t = 0; t < tile.count; t += kLanes<A>) {
      const V some = Load<A, kLanes<A>>(logits + t);
      top = some > top ? some : top;
    }
    return Largest<A, kLanes<A>>(top);
  }

  // Makes logits powers e^(logit - shift); their sum.
  JAXGRAPH_INLINE static A Powers(const Tile& tile, A shift, A* logits) {
    V total{};
    for (int t = 0; t < tile.count; t += kLanes<A>) {
      const V powers = Exp<kLanes<A>>(V(Load<A, kLanes<A>>(logits + t) - shift));
      total += powers;
      Store<A, kLanes<A>>(logits + t, powers);
    }
    return Total<A, kLanes<A>>(total);
  }

  void Merge(const State& to, const State& from) const {
    for (int64_t head = 0; head < a.heads; ++head) {
      const A top = std::max(to.peak[head], from.peak[head]);
      const A left = Rescale(to.peak[head], top);
      const A right = Rescale(from.peak[head], top);
      to.peak[head] = top;
      to.total[head] = left * to.total[head] + right * from.total[head];
      for (int64_t c = head * a.width; c < (head + 1) * a.width; ++c) {
        to.sums[c] = left * to.sums[c] + right * from.sums[c];
      }
    }
  }
};

template <class T>
void Attend(const AttentionArguments<T>& a, Workers& workers) {
  if (a.heads == 0) return;
  const AttentionOp<T> op(a);
  ReduceTiles<Accumulator<T>>(a.edges, a.self, a.heads, a.resume, a.heads * a.width, workers, op);
}

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_ATTENTION_H_
