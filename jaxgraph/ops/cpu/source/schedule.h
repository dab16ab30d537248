// Work over compressed rows cut by edges, not by rows, so that a row of very many edges does not
// leave all threads but one idle. The cuts depend on the edges alone: results are the same bits on
// any number of threads.

#ifndef JAXGRAPH_SCHEDULE_H_
#define JAXGRAPH_SCHEDULE_H_

#include <algorithm>
#include <cstdint>
#include <memory>

#include "edges.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

// Numbers gathered by one piece of work: enough to forget the cost of fetching a piece, few enough
// that the last pieces end together.
constexpr int64_t kNumbersPerPiece = int64_t{1} << 18;
constexpr int64_t kFewestEdgesPerPiece = 512;
constexpr int64_t kRowsPerFill = 2048;

inline int64_t EdgesPerPiece(int64_t numbers_per_edge) {
  return std::max(kFewestEdgesPerPiece,
                  kNumbersPerPiece / std::max<int64_t>(numbers_per_edge, 1));
}

inline bool IsAscending(const Edges& edges) {
  for (int32_t entry = edges.first + 1; entry < edges.last; ++entry) {
    if (edges.rows[entry] <= edges.rows[entry - 1]) return false;
  }
  return true;
}

// Calls fill(row) for every row of the table without edges (for every row where the rows do not
// ascend, so that it must come before the rows are written).
template <class Fill>
void FillRows(const Edges& edges, Workers& workers, Fill fill) {
  const bool ascending = IsAscending(edges);
  const int64_t blocks = (edges.num_rows + kRowsPerFill - 1) / kRowsPerFill;
  ForEachPiece(workers, blocks, [&](int64_t block) {
    const int64_t begin = block * kRowsPerFill;
    const int64_t end = std::min(begin + kRowsPerFill, edges.num_rows);
    const int32_t* entry = edges.rows + edges.last;
    const int32_t* const stop = entry;
    if (ascending) entry = std::lower_bound(edges.rows + edges.first, stop, begin);
    for (int64_t row = begin; row < end; ++row) {
      if (entry < stop && *entry == row) {
        ++entry;
      } else {
        fill(row);
      }
    }
  });
}

// Reduces the edges of every row.
//
//   op.StateSize()                        numbers of a partial result
//   op.Row(row, begin, end)               a whole row: edges [begin, end), written where it belongs
//   op.Part(row, begin, end, state)       a part of a row, into `state`
//   op.Join(row, states, stride, count)   a row from the states of its parts, `stride` numbers apart
template <class A, class Op>
void ReduceRows(const Edges& edges, int64_t edges_per_piece, Workers& workers, const Op& op) {
  if (edges.first >= edges.last) return;
  const int32_t* const starts = edges.starts;
  const int64_t origin = starts[edges.first];
  const int64_t pieces = (starts[edges.last] - origin + edges_per_piece - 1) / edges_per_piece;
  const int64_t size = op.StateSize();
  // Piece p ends at most one row that another piece started and starts at most one that it does not
  // end: states 2 p and 2 p + 1. What is not used is not touched.
  std::unique_ptr<A[]> states(new A[2 * pieces * size]);
  const auto is_long = [&](int32_t entry) {
    return starts[entry + 1] - starts[entry] > edges_per_piece;
  };
  const auto first_from = [&](int64_t edge) {
    return static_cast<int32_t>(
        std::lower_bound(starts + edges.first, starts + edges.last, edge) - starts);
  };
  ForEachPiece(workers, pieces, [&](int64_t piece) {
    const int64_t low = origin + piece * edges_per_piece;
    const int64_t high = low + edges_per_piece;
    int32_t entry = first_from(low);
    if (entry > edges.first && starts[entry] > low && is_long(entry - 1)) {
      const int64_t end = std::min<int64_t>(starts[entry], high);
      op.Part(edges.rows[entry - 1], low, end, states.get() + 2 * piece * size);
    }
    for (; entry < edges.last && starts[entry] < high; ++entry) {
      if (is_long(entry)) {
        op.Part(edges.rows[entry], starts[entry], high, states.get() + (2 * piece + 1) * size);
      } else {
        op.Row(edges.rows[entry], starts[entry], starts[entry + 1]);
      }
    }
  });
  ForEachPiece(workers, pieces, [&](int64_t piece) {
    const int64_t low = origin + piece * edges_per_piece;
    const int32_t after = first_from(low + edges_per_piece);
    if (after == edges.first || starts[after - 1] < low || !is_long(after - 1)) return;
    // The states of the row: the second of this piece, the first of each of the next ones.
    const int64_t count = (starts[after] - 1 - origin) / edges_per_piece - piece + 1;
    op.Join(edges.rows[after - 1], states.get() + (2 * piece + 1) * size, size, count);
  });
}

// State number `part` of a row handed to Join: the first stands right before the second.
template <class A>
inline const A* StateOfPart(const A* states, int64_t stride, int64_t part) {
  return part == 0 ? states : states + (2 * part - 1) * stride;
}

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_SCHEDULE_H_
