// Products of the rows of a table, or of two side by side, with a matrix.

#ifndef JAXGRAPH_ROW_PRODUCT_H_
#define JAXGRAPH_ROW_PRODUCT_H_

#include <algorithm>
#include <cstdint>
#include <memory>

#include "columns.h"
#include "kernels.h"
#include "product_tiles.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

// The fewest groups of `kTileRows` rows in a piece of work.
constexpr int64_t kFewestGroups = 8;
constexpr int64_t kRowProductPieces = 64;

template <class T>
class RowProductOp {
 public:
  using A = Accumulator<T>;

  explicit RowProductOp(const RowProductArguments<T>& a)
      : groups((a.rows + kTileRows - 1) / kTileRows),
        pieces(std::clamp<int64_t>(groups / kFewestGroups, 1, kRowProductPieces)),
        a_(a),
        map_(a.x.Width(), a.y.Width()) {
    map_.Fill(a.map, a.x.Width());
  }

  const int64_t groups, pieces;

  void Piece(int64_t piece) const {
    const std::unique_ptr<A[]> rows(new A[a_.x.Width() * kTileRows]());
    A* const right = rows.get() + a_.x.left_width;
    for (int64_t group = piece * groups / pieces; group < (piece + 1) * groups / pieces; ++group) {
      const int64_t first = group * kTileRows;
      const int64_t count = std::min<int64_t>(kTileRows, a_.rows - first);
      Read(a_.x.left, a_.x.left_width, first, count, rows.get());
      Read(a_.x.right, a_.x.right_width, first, count, right);
      Ahead next = Rows(first + count);
      for (int64_t column = 0; column < a_.y.Width(); column += kPanel) {
        Map(rows.get(), column, first, count, next);
      }
    }
  }

 private:
  static constexpr int64_t kPanel = kTileVectors * kLanes<A>;

  // The group of rows from `first` on.
  Ahead Rows(int64_t first) const {
    const auto at = [&](int64_t row) {
      return reinterpret_cast<const char*>(a_.x.left + std::min(row, a_.rows) * a_.x.left_width);
    };
    return {at(first), at(first + kTileRows)};
  }

  // Copies some rows of a table into the rows of both tables.
  void Read(const T* x, int64_t width, int64_t first, int64_t count, A* rows) const {
    for (int64_t r = 0; r < count; ++r) {
      CopyRow<A>(rows + r * a_.x.Width(), x + (first + r) * width, width);
    }
  }

  // Maps to the columns of a panel from `column` on; meanwhile fetches rows.
  void Map(const A* rows, int64_t column, int64_t first, int64_t count, Ahead& next) const {
    const int64_t columns = std::min(kPanel, a_.y.Width() - column);
    A tile[kTileRows * kPanel];
    WithCount<kTileVectors>((columns + kLanes<A> - 1) / kLanes<A>, [&](auto constant) {
      AddTile<A, decltype(constant)::kValue>(a_.x.Width(), TileInput<A>{rows, 1, a_.x.Width()},
                                             map_[column / kPanel], /*add=*/false, tile, next);
    });
    const int64_t left = std::clamp<int64_t>(a_.y.left_width - column, 0, columns);
    for (int64_t r = 0; r < count; ++r) {
      const A* from = tile + r * kPanel;
      const int64_t row = first + r;
      if (left > 0) CopyRow<A>(a_.y.left + row * a_.y.left_width + column, from, left);
      if (left == columns) continue;
      const int64_t at = column + left - a_.y.left_width;
      CopyRow<A>(a_.y.right + row * a_.y.right_width + at, from + left, columns - left);
    }
  }

  const RowProductArguments<T>& a_;
  Panels<A, kPanel> map_;
};

template <class T>
void MapRows(const RowProductArguments<T>& a, Workers& workers) {
  if (a.rows == 0 || a.y.Width() == 0) return;
  const RowProductOp<T> op(a);
  ForEachPiece(workers, op.pieces, [&](int64_t piece) { op.Piece(piece); });
}

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_ROW_PRODUCT_H_
