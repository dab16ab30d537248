// Attention, forward: one pass over the edges, with a running maximum.

#ifndef JAXGRAPH_ATTENTION_H_
#define JAXGRAPH_ATTENTION_H_

#include "dropout.h"
#include "logits.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

// `peak`, and 0 where it is -inf, since exp(-inf - -inf) would be NaN.
template <class A>
JAXGRAPH_INLINE A Finite(A peak) {
  return peak == -std::numeric_limits<A>::infinity() ? A{0} : peak;
}

// The factor by which a sum of powers relative to `peak` becomes one relative to `top`.
template <class A>
JAXGRAPH_INLINE A Rescale(A peak, A top) {
  return peak == top ? A{1} : Exp<1>(Vector<A, 1>{peak - Finite(top)})[0];
}

template <class T, int fixed>
struct AttentionOp {
  using A = Accumulator<T>;
  using V = Vector<A, kLanes<A>>;
  const AttentionArguments<T>& a;
  WeightedSum<T> weighted_sum;
  Heads<A, fixed> heads;
  Slopes<A> slopes;

  explicit AttentionOp(const AttentionArguments<T>& a)
      : a(a),
        weighted_sum(a.values, a.heads, a.width, a.dropout.seed != nullptr),
        heads(a.heads),
        slopes(a.logits) {}

  struct State {
    A* peak;
    A* total;
    A* sums;
  };

  int64_t StateSize() const { return heads.count * (2 + a.width); }

  State At(int64_t row) const {
    const int64_t place = row * heads.count;
    return {a.peak + place, a.total + place, a.sums + place * a.width};
  }

  State In(A* memory) const { return {memory, memory + heads.count, memory + 2 * heads.count}; }

  void Start(const State& state) const {
    std::fill_n(state.peak, heads.count, -std::numeric_limits<A>::infinity());
    std::fill_n(state.total, heads.count, A{0});
    std::fill_n(state.sums, heads.count * a.width, A{0});
  }

  void FoldTile(int64_t row, const Tile& tile, const State& state) const {
    A numbers[kTileNumbers];
    A scale[kMostHeads + kLanes<A>];
    TileHidden(a.logits, row, a.width, tile, heads, numbers);
    TileLogits(slopes, tile, heads, numbers, numbers);
    bool rescaled = false;
    for (int64_t block = 0; block < heads.blocks; ++block) {
      const V factor = FoldLogits(tile, block, state, numbers);
      Store<A, kLanes<A>>(scale + block * kLanes<A>, factor);
      for (int i = 0; i < kLanes<A>; ++i) rescaled |= factor[i] != 1;
    }
    if (a.dropout.seed != nullptr) {
      DropTile(a.dropout, tile, row, false, heads, numbers, numbers);
    }
    const bool fetch = a.logits.kind == Attention::kGat;
    weighted_sum({tile, heads.stride, numbers}, fetch, rescaled ? scale : nullptr, state.sums);
  }

  // Replaces the logits of a block of heads by powers. Returns the factor for the earlier sums.
  JAXGRAPH_INLINE V FoldLogits(const Tile& tile, int64_t block, const State& state,
                               A* numbers) const {
    const V before = heads.Repeat(state.peak, block);
    const V total = heads.Repeat(state.total, block);
    const V top = heads.Over(numbers, tile.count, block, before,
                             [](V x, V y) JAXGRAPH_LAMBDA { return x > y ? x : y; });
    const V shift = top == -std::numeric_limits<A>::infinity() ? V{} : top;
    V powers{};
    for (int64_t v = block; v < heads.Vectors(tile.count); v += heads.blocks) {
      A* place = numbers + v * kLanes<A>;
      const V power = Exp<kLanes<A>>(V(Load<A, kLanes<A>>(place) - shift));
      powers += power;
      Store<A, kLanes<A>>(place, power);
    }
    powers = heads.Fold(powers, [](V x, V y) JAXGRAPH_LAMBDA { return x + y; });
    // Without earlier messages there is nothing to rescale.
    const V factor = total == V{} ? V{} + A{1} : Exp<kLanes<A>>(V(before - shift));
    heads.Unpack(top, block, state.peak);
    heads.Unpack(V(total * factor + powers), block, state.total);
    return factor;
  }

  void Merge(const State& to, const State& from) const {
    for (int64_t head = 0; head < heads.count; ++head) {
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

  void Resume(const State& state) const {
    Multiply(state, [](A total) { return total; });
  }

  void Finish(const State& state) const {
    Multiply(state, [](A total) { return total == 0 ? A{1} : 1 / total; });
  }

 private:
  template <class Factor>
  void Multiply(const State& state, Factor factor) const {
    for (int64_t head = 0; head < heads.count; ++head) {
      const A scale = factor(state.total[head]);
      ScaleRow(state.sums + head * a.width, scale, a.width);
    }
  }
};

template <class T>
void Attend(const AttentionArguments<T>& a, Workers& workers) {
  if (a.heads == 0) return;
  const Cuts cuts(a.edges, !a.resume, a.heads * a.width);
  WithHeads<Accumulator<T>>(a.heads, [&](auto constant) {
    const AttentionOp<T, decltype(constant)::kValue> op(a);
    ReduceTiles<Accumulator<T>>(cuts, a.self, workers, op);
  });
}

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_ATTENTION_H_
