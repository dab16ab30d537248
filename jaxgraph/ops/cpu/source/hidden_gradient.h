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
  TileShape shape;
  // The gradient of the attention vector has no row. Each piece of work sums up its own, so that the
  // order of the sum does not depend on the threads: `pieces` of edges, then blocks of rows that
  // take in their own messages.
  int64_t edges_per_piece;
  int64_t pieces;
  A* dattention;

  struct State {
    A* drow;
  };

  int64_t StateSize() const { return a.heads * a.width; }
  State At(int64_t row) const { return {a.drow + row * StateSize()}; }
  State In(A* memory) const { return {memory}; }
  void Start(const State& state) const { std::fill_n(state.drow, StateSize(), A{0}); }

  void Merge(const State& to, const State& from) const {
    for (int64_t c = 0; c < StateSize(); ++c) to.drow[c] += from.drow[c];
  }

  void Take(int64_t row, const Tile& tile, const State& state) const {
    A weights[kTileNumbers];
    for (int t = 0; t < tile.count; ++t) {
      FetchAhead(a.logits.neighbor, StateSize(), tile, t);
      const A* from = t < tile.own ? a.per_self + row * a.heads
                                   : a.per_edge + tile.Slot(t) * a.heads;
      for (int64_t head = 0; head < a.heads; ++head) weights[head * shape.stride + t] = from[head];
    }
    const int64_t piece = tile.own ? pieces + row / kRowsPerFill
                                   : (tile.first - a.edges.starts[a.edges.first]) / edges_per_piece;
    hidden_sum({tile, shape, weights}, row, state.drow, dattention + piece * StateSize());
  }
};

template <class T>
void HiddenGradient(const HiddenGradientArguments<T>& a, Workers& workers) {
  using A = Accumulator<T>;
  if (a.heads == 0) return;
  const int64_t size = a.heads * a.width;
  const bool empty = a.edges.first >= a.edges.last;
  const int64_t edges =
      empty ? 0 : a.edges.starts[a.edges.last] - a.edges.starts[a.edges.first];
  const int64_t edges_per_piece = EdgesPerPiece(size);
  const int64_t pieces = (edges + edges_per_piece - 1) / edges_per_piece;
  const int64_t blocks = (a.edges.num_rows + kRowsPerFill - 1) / kRowsPerFill;
  std::vector<A> partial((pieces + blocks) * size);
  const HiddenGradientOp<T> op{
      a, HiddenSum<T>(a.logits, a.heads, a.width), TileShape(a.heads), edges_per_piece, pieces,
      partial.data()};
  // Own messages apart from edges: a tile of both would belong to two sums.
  const bool apart = a.self.missing != nullptr;
  if (apart && !a.resume) {
    ForEachPiece(workers, blocks, [&](int64_t block) {
      const int64_t end = std::min((block + 1) * kRowsPerFill, a.edges.num_rows);
      std::fill(a.drow + block * kRowsPerFill * size, a.drow + end * size, A{0});
    });
  }
  ReduceTiles<A>(a.edges, a.self, a.heads, a.resume || apart, size, workers, op);
  for (int64_t piece = 0; piece < pieces + blocks; ++piece) {
    for (int64_t c = 0; c < size; ++c) a.dattention[c] += partial[piece * size + c];
  }
}

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_HIDDEN_GRADIENT_H_
