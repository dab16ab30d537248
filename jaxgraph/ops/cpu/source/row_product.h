// A matrix that maps the rows of a table, which may be written over what they are made from.

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

// Groups of `kTileRows` rows that a piece of work takes at least.
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
        map_(a.in_width, a.out_width) {
    map_.Fill(a.map, a.in_width);
  }

  const int64_t groups, pieces;

  void Piece(int64_t piece) const {
    const std::unique_ptr<A[]> rows(new A[a_.in_width * kTileRows]());
    for (int64_t group = piece * groups / pieces; group < (piece + 1) * groups / pieces; ++group) {
      const int64_t first = group * kTileRows;
      const int64_t count = std::min<int64_t>(kTileRows, a_.rows - first);
      // Read whole before anything is written over them.
      for (int64_t r = 0; r < count; ++r) {
        const T* from = a_.x + (first + r) * a_.in_width;
        for (int64_t k = 0; k < a_.in_width; ++k) {
          rows[k * kTileRows + r] = Load<A, 1>(from + k)[0];
        }
      }
      Ahead next = Rows(first + count);
      for (int64_t column = 0; column < a_.out_width; column += kPanel) {
        Map(rows.get(), column, count, a_.y + first * a_.out_width, next);
      }
    }
  }

 private:
  static constexpr int64_t kPanel = kTileVectors * kLanes<A>;

  // The group of rows from `first` on.
  Ahead Rows(int64_t first) const {
    const auto at = [&](int64_t row) {
      return reinterpret_cast<const char*>(a_.x + std::min(row, a_.rows) * a_.in_width);
    };
    return {at(first), at(first + kTileRows)};
  }

  // The columns of a panel from `first` on; meanwhile fetches rows.
  void Map(const A* rows, int64_t first, int64_t count, T* y, Ahead& next) const {
    const int64_t columns = std::min(kPanel, a_.out_width - first);
    A tile[kTileRows * kPanel] = {};
    WithCount<kTileVectors>((columns + kLanes<A> - 1) / kLanes<A>, [&](auto constant) {
      AddTile<A, decltype(constant)::kValue>(a_.in_width, rows, map_[first / kPanel], tile, next);
    });
    for (int64_t r = 0; r < count; ++r) {
      T* to = y + r * a_.out_width + first;
      const A* from = tile + r * kPanel;
      int64_t c = 0;
      for (; c + kLanes<A> <= columns; c += kLanes<A>) {
        Store<A, kLanes<A>>(to + c, Load<A, kLanes<A>>(from + c));
      }
      for (; c < columns; ++c) Store<A, 1>(to + c, Load<A, 1>(from + c));
    }
  }

  const RowProductArguments<T>& a_;
  Panels<A, kPanel> map_;
};

template <class T>
void MapRows(const RowProductArguments<T>& a, Workers& workers) {
  if (a.rows == 0 || a.out_width == 0) return;
  const RowProductOp<T> op(a);
  ForEachPiece(workers, op.pieces, [&](int64_t piece) { op.Piece(piece); });
}

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_ROW_PRODUCT_H_
