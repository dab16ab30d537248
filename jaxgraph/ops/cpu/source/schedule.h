// Work over compressed rows, cut by edges instead of by rows, so that one very long row does not
// leave all threads but one idle. The cuts depend on the edges alone: results have the same bits on
// any number of threads.

#ifndef JAXGRAPH_SCHEDULE_H_
#define JAXGRAPH_SCHEDULE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "edges.h"
#include "vectors.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

// Numbers gathered by one piece of work: enough to make the cost of fetching a piece negligible,
// few enough that the last pieces end together, also with few edges in all.
constexpr int64_t kFewestNumbersPerPiece = int64_t{1} << 14;
constexpr int64_t kMostNumbersPerPiece = int64_t{1} << 18;
constexpr int64_t kPieces = 64;

// Edges of one row in one piece of work.
struct Span {
  int64_t begin;
  int64_t end;
  int64_t piece;
};

// The partial results of one row.
template <class A>
struct Parts {
  const A* first;
  int64_t size;
  int64_t count;

  // The second directly follows the first; each later one skips one state.
  const A* operator[](int64_t part) const {
    return part == 0 ? first : first + (2 * part - 1) * size;
  }
};

inline bool IsAscending(const Edges& edges) {
  constexpr int lanes = kLanes<int32_t>;
  constexpr int32_t kStep = 64 * lanes;
  using V = Vector<int32_t, lanes>;
  int32_t entry = edges.first + 1;
  while (entry + lanes <= edges.last) {
    const int32_t end = std::min(entry + kStep, edges.last - lanes + 1);
    V descents{};
    for (; entry < end; entry += lanes) {
      descents |= LoadBits<V>(edges.rows + entry) <= LoadBits<V>(edges.rows + entry - 1);
    }
    for (int lane = 0; lane < lanes; ++lane) {
      if (descents[lane] != 0) return false;
    }
  }
  for (; entry < edges.last; ++entry) {
    if (edges.rows[entry] <= edges.rows[entry - 1]) return false;
  }
  return true;
}

// The edges of a group cut into pieces, together with the rows of the table where rows without
// edges are written too. The place of an entry is the number of edges, and of rows, before it; its
// edges follow.
class Cuts {
 public:
  // `fill`: whether rows without edges are written.
  Cuts(const Edges& edges, bool fill, int64_t numbers_per_edge)
      : edges(edges),
        fill(fill),
        ascending(!fill || IsAscending(edges)),
        origin_(edges.first < edges.last ? edges.starts[edges.first] : 0) {
    const int64_t work = PlaceOf(edges.last, edges.num_rows);
    const int64_t numbers = std::max<int64_t>(numbers_per_edge, 1);
    size_ = std::clamp(work / kPieces, kFewestNumbersPerPiece / numbers + 1,
                       kMostNumbersPerPiece / numbers + 1);
    pieces = (work + size_ - 1) / size_;
  }

  const Edges& edges;
  const bool fill;
  const bool ascending;
  int64_t pieces;

  int64_t Begin(int64_t piece) const { return piece * size_; }
  int64_t Place(int32_t entry) const { return PlaceOf(entry, edges.rows[entry]); }
  // The most edges of a row that is not cut.
  int64_t MostWhole() const { return size_; }
  bool IsLong(int32_t entry) const { return Count(entry) > MostWhole(); }

  // The first entry at or after `place`.
  int32_t EntryFrom(int64_t place) const {
    int32_t low = edges.first, high = edges.last;
    while (low < high) {
      const int32_t middle = low + (high - low) / 2;
      if (Place(middle) < place) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  // The first row of a piece whose first entry is `entry`.
  int64_t FirstRow(int32_t entry, int64_t piece) const {
    const int64_t after = entry == edges.first ? 0 : int64_t{edges.rows[entry - 1]} + 1;
    const int64_t stop = entry == edges.last ? edges.num_rows : edges.rows[entry];
    return std::clamp(Begin(piece) - PlaceOf(entry, 0), after, stop);
  }

  // The edges of a long entry in one piece.
  Span Part(int32_t entry, int64_t piece) const {
    const int64_t done = Begin(piece) - Place(entry);
    const int64_t begin = std::clamp<int64_t>(done, 0, Count(entry));
    const int64_t end = std::clamp<int64_t>(done + size_, 0, Count(entry));
    return {edges.starts[entry] + begin, edges.starts[entry] + end, piece};
  }

  // The number of pieces that share a long entry.
  int64_t Parts(int32_t entry) const {
    return (Place(entry) + Count(entry) - 1) / size_ - Place(entry) / size_ + 1;
  }

 private:
  int64_t Count(int32_t entry) const { return edges.starts[entry + 1] - edges.starts[entry]; }

  int64_t PlaceOf(int32_t entry, int64_t row) const {
    const int64_t before = edges.first < edges.last ? edges.starts[entry] - origin_ : 0;
    return before + (fill && ascending ? row : 0);
  }

  int64_t origin_;
  int64_t size_;
};

// Calls fill(row, piece) for the rows without edges where the rows of the entries do not ascend.
template <class Fill>
void FillUnordered(const Cuts& cuts, Workers& workers, Fill fill) {
  const Edges& edges = cuts.edges;
  std::vector<char> has_edges(edges.num_rows);
  for (int32_t entry = edges.first; entry < edges.last; ++entry) has_edges[edges.rows[entry]] = 1;
  ForEachPiece(workers, cuts.pieces, [&](int64_t piece) {
    const int64_t end = (piece + 1) * edges.num_rows / cuts.pieces;
    for (int64_t row = piece * edges.num_rows / cuts.pieces; row < end; ++row) {
      if (!has_edges[row]) fill(row, piece);
    }
  });
}

// Reduces the edges of every row.
//
//   op.StateSize()                         numbers of a partial result
//   op.Fill(row, piece)                    a row without edges
//   op.Row(row, span)                      a whole row, written in place
//   op.Part(row, span, state)              a part of a row, into `state`
//   op.Join(row, piece, parts)             a row from the states of its parts
template <class A, class Op>
void ReduceRows(const Cuts& cuts, Workers& workers, const Op& op) {
  const Edges& edges = cuts.edges;
  const int64_t size = op.StateSize();
  // A piece ends at most one row that another piece started, and starts at most one that it does
  // not end: states 2 p and 2 p + 1. Unused states are not touched.
  const std::unique_ptr<A[]> states(new A[2 * cuts.pieces * size]);
  std::atomic<bool> some_are_cut{false};
  const bool fill = cuts.fill && cuts.ascending;
  if (cuts.fill && !cuts.ascending) {
    FillUnordered(cuts, workers, [&](int64_t row, int64_t piece) { op.Fill(row, piece); });
  }
  ForEachPiece(workers, cuts.pieces, [&](int64_t piece) {
    const int32_t first = cuts.EntryFrom(cuts.Begin(piece));
    const int32_t last = cuts.EntryFrom(cuts.Begin(piece + 1));
    if (first > edges.first && cuts.IsLong(first - 1)) {
      const Span span = cuts.Part(first - 1, piece);
      if (span.begin < span.end) {
        op.Part(edges.rows[first - 1], span, states.get() + 2 * piece * size);
      }
    }
    // Copies: the compiler must otherwise assume that writing a row changes these, and would read
    // them again for every row.
    const Op own = op;
    const int32_t* const rows = edges.rows;
    const int32_t* const starts = edges.starts;
    const int64_t most_whole = cuts.MostWhole();
    const bool fills = fill;
    int64_t next = fill ? cuts.FirstRow(first, piece) : 0;
    for (int32_t entry = first; entry < last; ++entry) {
      const int64_t row = rows[entry];
      if (fills) {
        for (; next < row; ++next) own.Fill(next, piece);
        ++next;
      }
      const Span span{starts[entry], starts[entry + 1], piece};
      if (span.end - span.begin > most_whole) {
        some_are_cut.store(true, std::memory_order_relaxed);
        op.Part(row, cuts.Part(entry, piece), states.get() + (2 * piece + 1) * size);
      } else {
        own.Row(row, span);
      }
    }
    if (!fill) return;
    for (const int64_t end = cuts.FirstRow(last, piece + 1); next < end; ++next) {
      own.Fill(next, piece);
    }
  });
  if (!some_are_cut) return;
  ForEachPiece(workers, cuts.pieces, [&](int64_t piece) {
    const int32_t last = cuts.EntryFrom(cuts.Begin(piece + 1)) - 1;
    if (last < edges.first || cuts.Place(last) < cuts.Begin(piece) || !cuts.IsLong(last)) return;
    // The states of the row: the second of this piece, the first of each of the next ones.
    const A* own = states.get() + (2 * piece + 1) * size;
    op.Join(edges.rows[last], piece, Parts<A>{own, size, cuts.Parts(last)});
  });
}

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_SCHEDULE_H_
