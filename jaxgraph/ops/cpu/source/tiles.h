// Rows of edges in tiles short enough for what is known of each edge to stay in the cache.

#ifndef JAXGRAPH_TILES_H_
#define JAXGRAPH_TILES_H_

#include <algorithm>
#include <limits>

#include "kernels.h"
#include "schedule.h"
#include "vectors.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

constexpr int kTileEdges = 64;
// Numbers per edge and head of a tile.
constexpr int kTileNumbers = 16 * kTileEdges;

// How many edges ahead, in this row or the next ones, rows are fetched into the cache: rows of
// columns, and rows of heads, of which more are read in the same time.
constexpr int64_t kColumnsAhead = 16;
constexpr int64_t kHeadsAhead = 24;

// How numbers per edge and head lie: the edges of a head side by side, heads `stride` apart.
struct TileShape {
  int64_t heads;
  int64_t stride;

  explicit TileShape(int64_t heads)
      : heads(heads), stride(heads * kTileEdges <= kTileNumbers ? kTileEdges : kTileEdges / 4) {}
};
static_assert(kMostHeads * kTileEdges / 4 <= kTileNumbers);
static_assert(kTileEdges / 4 % kLanes<float> == 0);

// Some edges of a row; in front of them, where `own` is 1, the row's message from itself.
struct Tile {
  const Edges& edges;
  const int32_t* neighbors;
  int64_t first;  // edge of the row, or of the part of it that is handled
  int64_t begin;
  int own;
  int count;

  int64_t Slot(int t) const { return edges.Slot(begin + t - own); }
  // A neighbor that will be needed soon.
  int64_t Ahead(int t, int64_t distance) const {
    return edges.neighbors[std::min(begin + t - own + distance, edges.num_slots - 1)];
  }
};

// Calls take(tile) for the edges [begin, end) of a row.
template <class Take>
void ForEachTile(const Edges& edges, const TileShape& shape, int64_t row, bool own, int64_t begin,
                 int64_t end, Take take) {
  const int64_t first = begin;
  if (own) {
    int32_t neighbors[kTileEdges];
    neighbors[0] = static_cast<int32_t>(row);
    const int64_t rest = std::min(end - begin, shape.stride - 1);
    for (int64_t i = 0; i < rest; ++i) neighbors[i + 1] = edges.neighbors[begin + i];
    take(Tile{edges, neighbors, first, begin, 1, static_cast<int>(rest + 1)});
    begin += rest;
  }
  for (; begin < end; begin += shape.stride) {
    const int64_t count = std::min(end - begin, shape.stride);
    take(Tile{edges, edges.neighbors + begin, first, begin, 0, static_cast<int>(count)});
  }
}

// Reduces rows tile by tile, for ReduceRows.
//
//   op.StateSize()               numbers of a state
//   op.At(row)                   the state of a row, where it belongs
//   op.In(memory)                a state elsewhere
//   op.Start(state)              makes it that of a row that has taken in nothing
//   op.Take(row, tile, state)    takes in the edges of a tile
//   op.Merge(state, other)       takes in another state of the same row
template <class A, class Op>
struct TileReducer {
  const Op& op;
  const Edges& edges;
  TileShape shape;
  SelfMessages self;
  bool resume;

  int64_t StateSize() const { return op.StateSize(); }

  void TakeAll(int64_t row, bool own, int64_t begin, int64_t end) const {
    const auto state = op.At(row);
    if (!resume) op.Start(state);
    ForEachTile(edges, shape, row, own, begin, end,
                [&](const Tile& tile) { op.Take(row, tile, state); });
  }

  void Fill(int64_t row) const { TakeAll(row, self.At(row), 0, 0); }

  void Row(int64_t row, int64_t begin, int64_t end) const {
    TakeAll(row, self.At(row), begin, end);
  }

  void Part(int64_t row, int64_t begin, int64_t end, A* memory) const {
    const auto state = op.In(memory);
    op.Start(state);
    ForEachTile(edges, shape, row, false, begin, end,
                [&](const Tile& tile) { op.Take(row, tile, state); });
  }

  void Join(int64_t row, const A* states, int64_t stride, int64_t parts) const {
    Fill(row);
    for (int64_t part = 0; part < parts; ++part) {
      op.Merge(op.At(row), op.In(const_cast<A*>(StateOfPart(states, stride, part))));
    }
  }
};

template <class A, class Op>
void ReduceTiles(const Edges& edges, const SelfMessages& self, int64_t heads, bool resume,
                 int64_t numbers_per_edge, Workers& workers, const Op& op) {
  TileReducer<A, Op> reducer{op, edges, TileShape(heads), self, resume};
  if (resume && self.missing != nullptr) {
    // Rows without edges may not be told from others; so all take in their own message first.
    const int64_t blocks = (edges.num_rows + kRowsPerFill - 1) / kRowsPerFill;
    ForEachPiece(workers, blocks, [&](int64_t block) {
      const int64_t end = std::min((block + 1) * kRowsPerFill, edges.num_rows);
      for (int64_t row = block * kRowsPerFill; row < end; ++row) {
        if (self.At(row)) reducer.Fill(row);
      }
    });
    reducer.self.missing = nullptr;
  }
  if (!resume) FillRows(edges, workers, [&](int64_t row) { reducer.Fill(row); });
  ReduceRows<A>(edges, EdgesPerPiece(numbers_per_edge), workers, reducer);
}

// function(place) for the vectors of all heads of a tile.
template <class A, class Function>
JAXGRAPH_INLINE void ForEachVector(const Tile& tile, const TileShape& shape, Function function) {
  for (int64_t head = 0; head < shape.heads; ++head) {
    for (int t = 0; t < tile.count; t += kLanes<A>) function(head * shape.stride + t);
  }
}

// Fills the last vector of every head behind the tile's edges.
template <class A>
JAXGRAPH_INLINE void Pad(const Tile& tile, const TileShape& shape, A value, A* numbers) {
  const int end = (tile.count + kLanes<A> - 1) / kLanes<A> * kLanes<A>;
  for (int64_t head = 0; head < shape.heads; ++head) {
    for (int t = tile.count; t < end; ++t) numbers[head * shape.stride + t] = value;
  }
}

// Numbers per head of the neighbors of a tile, 0 behind them.
template <class A>
void GatherHeads(const A* table, int64_t stride, const Tile& tile, const TileShape& shape, A* to) {
  for (int t = 0; t < tile.count; ++t) {
    __builtin_prefetch(table + tile.Ahead(t, kHeadsAhead) * stride);
    const A* from = table + int64_t{tile.neighbors[t]} * stride;
    for (int64_t head = 0; head < shape.heads; ++head) to[head * shape.stride + t] = from[head];
  }
  Pad(tile, shape, A{0}, to);
}

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_TILES_H_
