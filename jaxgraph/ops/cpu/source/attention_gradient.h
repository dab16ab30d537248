// Attention, backward: the sums at senders, and the gradient of each edge for its receiver.

#ifndef JAXGRAPH_ATTENTION_GRADIENT_H_
#define JAXGRAPH_ATTENTION_GRADIENT_H_


#include "dropout.h"
#include "hidden_sum.h"
#include "logits.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

template <class T, int fixed>
struct AttentionGradientOp {
  using A = Accumulator<T>;
  using V = Vector<A, kLanes<A>>;
  const AttentionGradientArguments<T>& a;
  WeightedSum<T> gradient_sum;
  WeightedSum<T> neighbor_sum;
  HiddenSum<T> hidden_sum;
  Heads<A, fixed> heads;
  Slopes<A> slopes;

  explicit AttentionGradientOp(const AttentionGradientArguments<T>& a)
      : a(a),
        gradient_sum(a.gradient, a.heads, a.width, a.dropout.seed != nullptr, a.is_shared),
        neighbor_sum(a.logits.neighbor, a.heads, a.width, false),
        hidden_sum(a.logits, a.heads, a.width),
        heads(a.heads),
        slopes(a.logits) {}

  // Null where it is not wanted.
  struct State {
    A* values;
    A* sender;
  };

  int64_t ValuesSize() const { return heads.count * a.width; }
  int64_t SenderSize() const {
    return a.logits.kind == Attention::kGat ? heads.count : heads.count * a.width;
  }
  int64_t StateSize() const { return ValuesSize() + SenderSize(); }

  State At(int64_t row) const {
    return {a.dvalues == nullptr ? nullptr : a.dvalues + row * ValuesSize(),
            a.dsender == nullptr ? nullptr : a.dsender + row * SenderSize()};
  }

  State In(A* memory) const {
    return {a.dvalues == nullptr ? nullptr : memory,
            a.dsender == nullptr ? nullptr : memory + ValuesSize()};
  }

  void Start(const State& state) const {
    if (state.values != nullptr) std::fill_n(state.values, ValuesSize(), A{0});
    if (state.sender != nullptr) std::fill_n(state.sender, SenderSize(), A{0});
  }

  void Merge(const State& to, const State& from) const {
    if (to.values != nullptr) AddRow(to.values, from.values, ValuesSize());
    if (to.sender != nullptr) AddRow(to.sender, from.sender, SenderSize());
  }

  void Resume(const State&) const {}

  void Finish(const State&) const {}

  bool WantsLogits() const {
    return a.logits.kind == Attention::kGatV2 || a.dsender != nullptr || a.per_edge != nullptr;
  }

  void FoldTile(int64_t row, const Tile& tile, const State& state) const {
    FetchSlots(tile);
    A hidden[kTileNumbers], powers[kTileNumbers], dropped[kTileNumbers];
    TileHidden(a.logits, row, a.width, tile, heads, hidden);
    TileLogits(slopes, tile, heads, hidden, powers);
    Exponentiate(tile, powers);
    const A* weights = powers;
    if (a.dropout.seed != nullptr) {
      DropTile(a.dropout, tile, row, true, heads, powers, dropped);
      weights = dropped;
    }
    A cotangents[kTileNumbers];
    if (WantsLogits()) {
      Cotangents(row, tile, hidden, powers, weights, cotangents);
      WriteSlots(row, tile, cotangents);
      AddSender(row, tile, cotangents, state);
    }
    if (state.values == nullptr) return;
    gradient_sum({tile, heads.stride, weights}, !WantsLogits(), nullptr, state.values);
  }

  // p = exp(e - peak) / z, in place; 0 after the last edge.
  void Exponentiate(const Tile& tile, A* logits) const {
    A peak[kTileNumbers], inverse[kTileNumbers];
    // GAT's logits, in the columns before, have been fetched already.
    GatherHeads(a.peak, a.stride, a.logits.kind != Attention::kGat, tile, heads, peak);
    if (a.inverse == nullptr) {
      std::fill_n(inverse, tile.count * heads.stride, A{1});
    } else {
      GatherHeads(a.inverse, a.stride, false, tile, heads, inverse);
    }
    heads.Pad(tile.count, A{0}, peak);
    heads.Pad(tile.count, A{0}, inverse);
    heads.ForEachVector(tile.count, [&](int64_t place, int64_t) JAXGRAPH_LAMBDA {
      const V shifted = Load<A, kLanes<A>>(logits + place) - Load<A, kLanes<A>>(peak + place);
      const V power = Exp<kLanes<A>>(shifted) * Load<A, kLanes<A>>(inverse + place);
      Store<A, kLanes<A>>(logits + place, power);
    });
  }

  // (d p <g, v> - p <g, y>) times the derivative of the logit by `hidden`; 0 after the last edge.
  void Cotangents(int64_t row, const Tile& tile, const A* hidden, const A* powers,
                  const A* weights, A* cotangents) const {
    const bool drops = a.dropout.seed != nullptr;
    A inner[kTileNumbers];
    GatherHeads(a.inner, a.stride, false, tile, heads, inner);
    TileDots(a.values + row * ValuesSize(), gradient_sum.table, a.width, tile, heads, cotangents);
    heads.ForEachVector(tile.count, [&](int64_t place, int64_t) JAXGRAPH_LAMBDA {
      const auto load = [&](const A* from) JAXGRAPH_LAMBDA {
        return Load<A, kLanes<A>>(from + place);
      };
      const V weight = load(weights);
      // The value of a dropped coefficient may be NaN.
      const V product = drops && weight == V{} ? V{} : weight * load(cotangents);
      const V change = product - load(powers) * load(inner);
      Store<A, kLanes<A>>(cotangents + place, change * slopes.At(load(hidden)));
    });
    heads.Pad(tile.count, A{0}, cotangents);
  }

  // Fetches the slots that WriteSlots writes, which are scattered.
  void FetchSlots(const Tile& tile) const {
    if (a.per_edge == nullptr) return;
    for (int t = tile.own; t < tile.count; ++t) {
      __builtin_prefetch(a.per_edge + tile.Slot(t) * heads.count, 1);
    }
  }

  // Writes the cotangents for the receivers.
  void WriteSlots(int64_t row, const Tile& tile, const A* cotangents) const {
    if (a.per_edge == nullptr) return;
    if (tile.own > 0) CopyHeads(a.per_self + row * heads.count, cotangents, heads.count);
    const A* from = cotangents + tile.own * heads.stride;
    for (int t = tile.own; t < tile.count; ++t, from += heads.stride) {
      CopyHeads(a.per_edge + tile.Slot(t) * heads.count, from, heads.count);
    }
  }

  void AddSender(int64_t row, const Tile& tile, const A* cotangents, const State& state) const {
    const TileWeights<A> weights{tile, heads.stride, cotangents};
    if (a.logits.kind == Attention::kGatV2) {
      if (state.values != nullptr) hidden_sum(weights, row, state.values, nullptr);
    } else if (state.sender == nullptr) {
      return;
    } else if (a.logits.kind == Attention::kDot) {
      neighbor_sum(weights, false, nullptr, state.sender);
    } else {
      for (int64_t block = 0; block < heads.blocks; ++block) {
        const V total = heads.Over(cotangents, tile.count, block, V{},
                                   [](V x, V y) JAXGRAPH_LAMBDA { return x + y; });
        heads.Unpack(V(total + heads.Repeat(state.sender, block)), block, state.sender);
      }
    }
  }
};

template <class T>
void AttendGradient(const AttentionGradientArguments<T>& a, Workers& workers) {
  if (a.heads == 0) return;
  const Cuts cuts(a.edges, !a.resume, 2 * a.heads * a.width);
  WithHeads<Accumulator<T>>(a.heads, [&](auto constant) {
    const AttentionGradientOp<T, decltype(constant)::kValue> op(a);
    ReduceTiles<Accumulator<T>>(cuts, a.self, workers, op);
  });
}

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_ATTENTION_GRADIENT_H_
