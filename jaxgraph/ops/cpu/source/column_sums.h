// Sums over the rows of two tables, by column.

#ifndef JAXGRAPH_COLUMN_SUMS_H_
#define JAXGRAPH_COLUMN_SUMS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels.h"
#include "vectors.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

// Rows that a piece of work takes: few enough that sums of sums are more exact than one sum.
constexpr int64_t kColumnSumRows = 1024;
constexpr int64_t kMostColumnSumPieces = 1024;

template <class T>
struct ColumnSumsOp {
  using A = Accumulator<T>;
  const ColumnSumsArguments<T>& a;

  // Adds some rows to sums [width] and products [width].
  void Add(int64_t first, int64_t last, A* sums, A* products) const {
    const int64_t whole = a.width / kLanes<A> * kLanes<A>;
    for (int64_t row = first; row < last; ++row) {
      if (a.valid != nullptr && !a.valid[row]) continue;
      const int64_t start = row * a.width;
      for (int64_t c = 0; c < whole; c += kLanes<A>) {
        AddVector<kLanes<A>>(start, c, sums, products);
      }
      for (int64_t c = whole; c < a.width; ++c) AddVector<1>(start, c, sums, products);
    }
  }

 private:
  template <int lanes>
  JAXGRAPH_INLINE void AddVector(int64_t start, int64_t c, A* sums, A* products) const {
    const auto x = Load<A, lanes>(a.x + start + c) - Load<A, lanes>(a.x_shift + c);
    const auto z = Load<A, lanes>(a.z + start + c) - Load<A, lanes>(a.z_shift + c);
    Store<A, lanes>(sums + c, Load<A, lanes>(sums + c) + x);
    Store<A, lanes>(products + c, Load<A, lanes>(products + c) + x * z);
  }
};

template <class T>
void ColumnSums(const ColumnSumsArguments<T>& a, Workers& workers) {
  using A = Accumulator<T>;
  const int64_t pieces = std::clamp<int64_t>(a.rows / kColumnSumRows, 1, kMostColumnSumPieces);
  std::vector<A> partial(pieces * 2 * a.width);
  const ColumnSumsOp<T> op{a};
  ForEachPiece(workers, pieces, [&](int64_t piece) {
    A* sums = partial.data() + piece * 2 * a.width;
    op.Add(piece * a.rows / pieces, (piece + 1) * a.rows / pieces, sums, sums + a.width);
  });
  std::fill_n(a.sums, a.width, A{0});
  std::fill_n(a.products, a.width, A{0});
  for (int64_t piece = 0; piece < pieces; ++piece) {
    const A* sums = partial.data() + piece * 2 * a.width;
    for (int64_t c = 0; c < a.width; ++c) {
      a.sums[c] += sums[c];
      a.products[c] += sums[a.width + c];
    }
  }
}

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_COLUMN_SUMS_H_
