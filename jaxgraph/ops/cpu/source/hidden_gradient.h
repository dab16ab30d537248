// The gradients of GATv2's logits by the receivers' rows and by the attention vector.

#ifndef JAXGRAPH_HIDDEN_GRADIENT_H_
#define JAXGRAPH_HIDDEN_GRADIENT_H_

#include <vector>

#include "hidden_sum.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

template <class T>
struct HiddenGradientOp {
  using A = Accumulator<T>;
  const HiddenGradientArguments<T>& a;
  HiddenSum<T> hidden_sum;
  Heads<A, 0> heads;
  // The gradient of the attention vector has no row. Each piece of work has its own sum, so that
  // the order of summation does not depend on the threads.
  A* dattention;

  struct State {
    A* drow;
  };

  int64_t StateSize() const { return a.heads * a.width; }
  State At(int64_t row) const { return {a.drow + row * StateSize()}; }
  State In(A* memory) const { return {memory}; }
  void Start(const State& state) const { std::fill_n(state.drow, StateSize(), A{0}); }

  void Merge(const State& to, const State& from) const {
    AddRow(to.drow, from.drow, StateSize());
  }

  void Resume(const State&) const {}

  void Finish(const State&) const {}

  void FoldTile(int64_t row, const Tile& tile, const State& state) const {
    A weights[kTileNumbers];
    heads.Clear(tile.count, weights);
    for (int t = 0; t < tile.count; ++t) {
      FetchAhead(a.logits.neighbor, StateSize(), tile, t);
      const A* from = t < tile.own ? a.per_self + row * a.heads
                                   : a.per_edge + tile.Slot(t) * a.heads;
      CopyHeads(weights + t * heads.stride, from, a.heads);
    }
    hidden_sum({tile, heads.stride, weights}, row, state.drow,
               dattention + tile.piece * StateSize());
  }
};

template <class T>
void HiddenGradient(const HiddenGradientArguments<T>& a, Workers& workers) {
  using A = Accumulator<T>;
  if (a.heads == 0) return;
  const int64_t size = a.heads * a.width;
  const Cuts cuts(a.edges, !a.resume, size);
  std::vector<A> partial(cuts.pieces * size);
  const HiddenGradientOp<T> op{a, HiddenSum<T>(a.logits, a.heads, a.width), Heads<A, 0>(a.heads),
                               partial.data()};
  ReduceTiles<A>(cuts, a.self, workers, op);
  for (int64_t piece = 0; piece < cuts.pieces; ++piece) {
    AddRow(a.dattention, partial.data() + piece * size, size);
  }
}

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_HIDDEN_GRADIENT_H_
