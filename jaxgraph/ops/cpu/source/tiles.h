// Rows of edges, in tiles short enough that the numbers of each edge stay in the cache.

#ifndef JAXGRAPH_TILES_H_
#define JAXGRAPH_TILES_H_

#include <algorithm>

#include "heads.h"
#include "kernels.h"
#include "schedule.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

// Edges ahead, in this row or later ones, at which rows are fetched into the cache: rows of
// columns, and rows of heads, of which more are read in the same time.
constexpr int64_t kColumnsAhead = 16;
constexpr int64_t kHeadsAhead = 24;

// Some edges of a row; before them, where `own` is 1, the row's self-message.
struct Tile {
  const Edges& edges;
  const int32_t* neighbors;
  int64_t piece;  // of the work
  int64_t begin;
  int own;
  int count;

  int64_t Slot(int t) const { return edges.Slot(begin + t - own); }
  // A later neighbor, to be fetched.
  int64_t Ahead(int t, int64_t distance) const {
    if (edges.num_slots == 0) return 0;
    return edges.neighbors[std::min(begin + t - own + distance, edges.num_slots - 1)];
  }
};

// Calls take(tile) for edges of a row.
template <class Take>
void ForEachTile(const Edges& edges, int64_t most, int64_t row, bool own, const Span& span,
                 Take take) {
  int64_t begin = span.begin;
  if (own) {
    int32_t neighbors[kTileEdges];
    neighbors[0] = static_cast<int32_t>(row);
    const int64_t rest = std::min(span.end - begin, most - 1);
    for (int64_t i = 0; i < rest; ++i) neighbors[i + 1] = edges.neighbors[begin + i];
    take(Tile{edges, neighbors, span.piece, begin, 1, static_cast<int>(rest + 1)});
    begin += rest;
  }
  for (; begin < span.end; begin += most) {
    const int64_t count = std::min(span.end - begin, most);
    take(Tile{edges, edges.neighbors + begin, span.piece, begin, 0, static_cast<int>(count)});
  }
}

// Reduces rows tile by tile, for ReduceRows.
//
//   op.heads                        the layout of numbers per head
//   op.StateSize()                  numbers of a state
//   op.At(row)                      the state of a row, in place
//   op.In(memory)                   a state elsewhere
//   op.Start(state)                 makes it the state of no messages
//   op.Resume(state)                undoes `Finish`, before more messages
//   op.FoldTile(row, tile, state)   folds the edges of a tile
//   op.Merge(state, other)          merges another state of the same row
//   op.Finish(state)                after all messages
template <class A, class Op>
struct TileReducer {
  const Op& op;
  const Edges& edges;
  const SelfMessages& self;
  bool resume;

  int64_t StateSize() const { return op.StateSize(); }

  void FoldAll(int64_t row, const Span& span) const {
    const auto state = op.At(row);
    resume ? op.Resume(state) : op.Start(state);
    ForEachTile(edges, op.heads.tile_edges, row, self.At(row), span,
                [&](const Tile& tile) { op.FoldTile(row, tile, state); });
  }

  void Row(int64_t row, const Span& span) const {
    FoldAll(row, span);
    op.Finish(op.At(row));
  }

  void Fill(int64_t row, int64_t piece) const { Row(row, {0, 0, piece}); }

  void Part(int64_t row, const Span& span, A* memory) const {
    const auto state = op.In(memory);
    op.Start(state);
    ForEachTile(edges, op.heads.tile_edges, row, false, span,
                [&](const Tile& tile) { op.FoldTile(row, tile, state); });
  }

  void Join(int64_t row, int64_t piece, const Parts<A>& parts) const {
    FoldAll(row, {0, 0, piece});
    for (int64_t part = 0; part < parts.count; ++part) {
      op.Merge(op.At(row), op.In(const_cast<A*>(parts[part])));
    }
    op.Finish(op.At(row));
  }
};

// Where the cuts do not fill rows, results are added to earlier states.
template <class A, class Op>
void ReduceTiles(const Cuts& cuts, const SelfMessages& self, Workers& workers, const Op& op) {
  const TileReducer<A, Op> reducer{op, cuts.edges, self, !cuts.fill};
  ReduceRows<A>(cuts, workers, reducer);
}

// Numbers per head of the neighbors of a tile. `fetch`: whether this is the first use of these rows
// of the table.
template <class A, int fixed>
void GatherHeads(const A* table, int64_t row_size, bool fetch, const Tile& tile,
                 const Heads<A, fixed>& heads, A* to) {
  heads.Clear(tile.count, to);
  for (int t = 0; t < tile.count; ++t) {
    if (fetch) __builtin_prefetch(table + tile.Ahead(t, kHeadsAhead) * row_size);
    CopyHeads(to + t * heads.stride, table + int64_t{tile.neighbors[t]} * row_size, heads.count);
  }
}

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_TILES_H_
