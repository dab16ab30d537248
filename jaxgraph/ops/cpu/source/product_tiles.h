// Products of tables, in tiles that are held in registers.

#ifndef JAXGRAPH_PRODUCT_TILES_H_
#define JAXGRAPH_PRODUCT_TILES_H_

#include <cstdint>
#include <memory>

#include "kernels.h"
#include "vectors.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

// Registers hold a tile of the result, and one vector more for each one that is read.
constexpr int kTileRows = 6;
constexpr int kTileVectors = kRegisterBytes == 64 ? 4 : 2;

constexpr int64_t kLineBytes = 64;

// Fetches the cache lines that are needed next, one per call.
struct Ahead {
  const char* next;
  const char* end;

  JAXGRAPH_INLINE void Fetch() {
    if (next >= end) return;
    __builtin_prefetch(next, /*rw=*/0, /*locality=*/2);
    next += kLineBytes;
  }
};

// The columns of a table, `panel` at a time: a panel has the rows one after another. Missing
// columns are 0.
template <class A, int64_t panel>
struct Panels {
  Panels(int64_t most_rows, int64_t width)
      : width(width),
        stride(most_rows * panel + kLineBytes / int64_t{sizeof(A)}),
        numbers(new A[(width + panel - 1) / panel * stride]()) {}

  const A* operator[](int64_t place) const { return numbers.get() + place * stride; }

  // Copies the columns from `first` on of `rows` rows, of which `from` has `columns` each.
  template <class T>
  void Fill(const T* from, int64_t rows, int64_t first, int64_t columns) {
    for (int64_t row = 0; row < rows; ++row, from += columns) {
      int64_t column = 0;
      if (first % panel == 0) {
        A* to = numbers.get() + first / panel * stride + row * panel;
        for (; column + kCopied <= columns; column += panel, to += stride) {
          for (int64_t c = 0; c < kCopied; c += kTogether) {
            Copy<kTogether>(from + column + c, to + c);
          }
        }
      }
      for (; column < columns; ++column) {
        const int64_t place = first + column;
        A* to = numbers.get() + place / panel * stride + row * panel;
        Copy<1>(from + column, to + place % panel);
      }
    }
  }

  template <class T>
  void Fill(const T* from, int64_t rows) {
    Fill(from, rows, 0, width);
  }

  template <class T>
  void Fill(const SideBySide<const T>& from, int64_t first_row, int64_t rows) {
    Fill(from.left + first_row * from.left_width, rows, 0, from.left_width);
    Fill(from.right + first_row * from.right_width, rows, from.left_width, from.right_width);
  }

  const int64_t width;
  // Not a multiple of a page: equal rows of all panels would compete for one set of the cache.
  const int64_t stride;
  const std::unique_ptr<A[]> numbers;

 private:
  // A panel somewhat narrower than a vector is copied with the numbers after it: its next row
  // overwrites these, and there is room after its last row.
  static constexpr int kVector = 8;
  static constexpr bool kIsNarrow = panel < kVector && kVector <= kLanes<A>;
  static constexpr int kCopied = kIsNarrow ? kVector : panel;
  static constexpr int kTogether = kIsNarrow ? kVector : panel % kLanes<A> == 0 ? kLanes<A> : 2;
  static_assert(kCopied % kTogether == 0);
  static_assert((kCopied - panel) * int64_t{sizeof(A)} <= kLineBytes);

  template <int lanes, class T>
  static void Copy(const T* from, A* to) {
    Store<A, lanes>(to, Load<A, lanes>(from));
  }
};

// `kTileRows` columns x of a table, with the steps between its rows and between its columns.
template <class A>
struct TileInput {
  const A* x;
  int64_t row_step;
  int64_t column_step;
};

// sums = x^T g for some columns of either table, plus, if `add`, the earlier sums.
template <class A, int vectors>
JAXGRAPH_INLINE void AddTile(int64_t rows, const TileInput<A>& input, const A* g, bool add, A* sums,
                             Ahead& lines) {
  constexpr int lanes = kLanes<A>;
  Ahead ahead = lines;
  Vector<A, lanes> tile[kTileRows][vectors]{};
  if (add) {
    JAXGRAPH_UNROLL
    for (int r = 0; r < kTileRows; ++r) {
      JAXGRAPH_UNROLL
      for (int v = 0; v < vectors; ++v) {
        tile[r][v] = Load<A, lanes>(sums + (r * kTileVectors + v) * lanes);
      }
    }
  }
  const A* x = input.x;
  for (int64_t row = 0; row < rows; ++row, x += input.row_step, g += kTileVectors * lanes) {
    if (row % 2 == 0) ahead.Fetch();
    Vector<A, lanes> right[vectors];
    JAXGRAPH_UNROLL
    for (int v = 0; v < vectors; ++v) right[v] = Load<A, lanes>(g + v * lanes);
    JAXGRAPH_UNROLL
    for (int r = 0; r < kTileRows; ++r) {
      JAXGRAPH_UNROLL
      for (int v = 0; v < vectors; ++v) tile[r][v] += x[r * input.column_step] * right[v];
    }
  }
  JAXGRAPH_UNROLL
  for (int r = 0; r < kTileRows; ++r) {
    JAXGRAPH_UNROLL
    for (int v = 0; v < vectors; ++v) {
      Store<A, lanes>(sums + (r * kTileVectors + v) * lanes, tile[r][v]);
    }
  }
  lines = ahead;
}

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_PRODUCT_TILES_H_
