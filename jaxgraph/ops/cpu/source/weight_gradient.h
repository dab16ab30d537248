// The gradient of a matrix that maps rows: a product of two very long and narrow tables.

#ifndef JAXGRAPH_WEIGHT_GRADIENT_H_
#define JAXGRAPH_WEIGHT_GRADIENT_H_

#include <algorithm>
#include <cstdint>
#include <memory>

#include "columns.h"
#include "kernels.h"
#include "product_tiles.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

// Rows of a chunk: the rows of both tables that a tile reads fit into the nearest cache.
constexpr int64_t kChunkRows = 128;

// The fewest rows of a piece of work, and the factor by which the partial results of all pieces are
// smaller than the tables.
constexpr int64_t kFewestRowsPerPiece = 512;
constexpr int64_t kSmallerResults = 8;
constexpr int64_t kMostRowPieces = 64;

template <class T>
class WeightGradientOp {
 public:
  using A = Accumulator<T>;

  explicit WeightGradientOp(const WeightGradientArguments<T>& a)
      : a_(a), out_width_(a.gradient.Width()) {
    const int64_t smaller =
        a.rows * (a.in_width + out_width_) / (kSmallerResults * a.in_width * out_width_);
    pieces = std::clamp<int64_t>(std::min(a.rows / kFewestRowsPerPiece, smaller), 1,
                                 kMostRowPieces);
    in_panels = (a.in_width + kTileRows - 1) / kTileRows;
    out_panels = (out_width_ + kPanel - 1) / kPanel;
    sums_.reset(new A[pieces * Size()]);
  }

  int64_t pieces, in_panels, out_panels;

  // The sum over the rows of a piece.
  void Piece(int64_t piece) const {
    A* sums = sums_.get() + piece * Size();
    std::fill_n(sums, Size(), A{0});
    Inputs x(kChunkRows, a_.in_width);
    Outputs g(kChunkRows, out_width_);
    const int64_t end = (piece + 1) * a_.rows / pieces;
    for (int64_t row = piece * a_.rows / pieces; row < end; row += kChunkRows) {
      const int64_t rows = std::min(kChunkRows, end - row);
      x.Fill(a_.x + row * a_.in_width, rows);
      g.Fill(a_.gradient, row, rows);
      AddChunk(rows, x, g, sums, row + rows, std::min(kChunkRows, end - row - rows));
    }
  }

  // Some rows of the result, from the sums of all pieces.
  void Join(int64_t in_panel) const {
    const int64_t first = in_panel * kTileRows;
    for (int64_t r = 0; r < std::min<int64_t>(kTileRows, a_.in_width - first); ++r) {
      A* y = a_.y + (first + r) * out_width_;
      for (int64_t column = 0; column < out_width_; column += kPanel) {
        const A* from = Tile(sums_.get(), in_panel, column / kPanel) + r * kPanel;
        const int64_t last = std::min(kPanel, out_width_ - column);
        std::copy_n(from, last, y + column);
        for (int64_t piece = 1; piece < pieces; ++piece) {
          from += Size();
          AddRow(y + column, from, last);
        }
      }
    }
  }

 private:
  static constexpr int64_t kPanel = kTileVectors * kLanes<A>;
  using Inputs = Panels<A, kTileRows>;
  using Outputs = Panels<A, kPanel>;

  int64_t Size() const { return in_panels * out_panels * kTileRows * kPanel; }

  A* Tile(A* sums, int64_t in_panel, int64_t out_panel) const {
    return sums + (out_panel * in_panels + in_panel) * kTileRows * kPanel;
  }

  // Meanwhile fetches the rows after the chunk, equally many lines with each tile.
  void AddChunk(int64_t rows, const Inputs& x, const Outputs& g, A* sums, int64_t next,
                int64_t next_rows) const {
    Ahead aheads[] = {Rows(a_.x, a_.in_width, next, next_rows),
                      Rows(a_.gradient.left, a_.gradient.left_width, next, next_rows)};
    for (int64_t out_panel = 0; out_panel < out_panels; ++out_panel) {
      const int64_t columns = std::min(kPanel, out_width_ - out_panel * kPanel);
      WithCount<kTileVectors>((columns + kLanes<A> - 1) / kLanes<A>, [&](auto constant) {
        for (int64_t in_panel = 0; in_panel < in_panels; ++in_panel) {
          Ahead& ahead = aheads[0].next < aheads[0].end ? aheads[0] : aheads[1];
          AddTile<A, decltype(constant)::kValue>(rows, TileInput<A>{x[in_panel], kTileRows, 1},
                                                 g[out_panel], /*add=*/true,
                                                 Tile(sums, in_panel, out_panel), ahead);
        }
      });
    }
  }

  static Ahead Rows(const T* table, int64_t width, int64_t first, int64_t rows) {
    const char* begin = reinterpret_cast<const char*>(table + first * width);
    return {begin, begin + std::max<int64_t>(rows, 0) * width * sizeof(T)};
  }

  const WeightGradientArguments<T>& a_;
  const int64_t out_width_;
  std::unique_ptr<A[]> sums_;
};

template <class T>
void WeightGradient(const WeightGradientArguments<T>& a, Workers& workers) {
  if (a.in_width == 0 || a.gradient.Width() == 0) return;
  const WeightGradientOp<T> op(a);
  ForEachPiece(workers, op.pieces, [&](int64_t piece) { op.Piece(piece); });
  ForEachPiece(workers, op.in_panels, [&](int64_t panel) { op.Join(panel); });
}

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_WEIGHT_GRADIENT_H_
