// Random bits of edges, the same as those of `jaxgraph.ops.core.randomness`.

#ifndef JAXGRAPH_DROPOUT_H_
#define JAXGRAPH_DROPOUT_H_

#include "kernels.h"
#include "tiles.h"
#include "vectors.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

// Works on numbers and on vectors of them.
template <class U>
JAXGRAPH_INLINE U Mix(U word) {
  word = (word ^ (word >> 16)) * 0x21F0AAADu;
  word = (word ^ (word >> 15)) * 0x735A2D97u;
  return word ^ (word >> 15);
}

// Both words of a seed, mixed into two.
struct SeedWords {
  uint32_t first, second;

  explicit SeedWords(const uint32_t* seed) {
    const uint32_t start = Mix(seed[0] ^ 0x9E3779B9u ^ 0x165667B1u);
    second = Mix((seed[1] ^ 0x85EBCA6Bu) + start);
    first = Mix(start ^ second);
  }
};

// Global ids of both ends of the edges of a tile, and the index of each edge among equal ones.
struct TileIds {
  uint32_t receivers[kTileEdges];
  uint32_t senders[kTileEdges];
  uint32_t repetition[kTileEdges];

  TileIds(const Dropout& dropout, const Tile& tile, int64_t row, bool rows_are_senders) {
    const int32_t* row_ids = rows_are_senders ? dropout.sender_ids : dropout.receiver_ids;
    const int32_t* neighbor_ids = rows_are_senders ? dropout.receiver_ids : dropout.sender_ids;
    uint32_t* rows = rows_are_senders ? senders : receivers;
    uint32_t* neighbors = rows_are_senders ? receivers : senders;
    std::memset(this, 0, sizeof(*this));
    for (int t = 0; t < tile.count; ++t) {
      rows[t] = static_cast<uint32_t>(row_ids[row]);
      neighbors[t] = static_cast<uint32_t>(neighbor_ids[tile.neighbors[t]]);
      if (dropout.repetition == nullptr || t < tile.own) continue;
      repetition[t] = static_cast<uint32_t>(dropout.repetition[tile.Slot(t)]);
    }
    // A self-message has one id at both ends, that of the sender.
    if (tile.own) receivers[0] = senders[0] = static_cast<uint32_t>(dropout.sender_ids[row]);
  }
};

// to_th = d_th from_th, with d_th the scale where head h keeps edge t of the tile, else 0.
template <class A, int fixed>
void DropTile(const Dropout& dropout, const Tile& tile, int64_t row, bool rows_are_senders,
              const Heads<A, fixed>& heads, const A* from, A* to) {
  constexpr int lanes = kLanes<A>;
  using U = Vector<uint32_t, lanes>;
  using Mask = decltype(Vector<A, lanes>{} == Vector<A, lanes>{});
  const SeedWords seed(dropout.seed);
  const TileIds ids(dropout, tile, row, rows_are_senders);
  // The words of every edge and head before the last mix.
  uint32_t words[kTileNumbers];
  for (int t = 0; t < tile.count; t += lanes) {
    const U receivers = LoadBits<U>(ids.receivers + t);
    const U pair = Mix(receivers ^ seed.first) +
                   Mix(Mix(LoadBits<U>(ids.senders + t) + seed.second) ^ seed.first);
    const U start = Mix(pair ^ Mix(LoadBits<U>(ids.repetition + t) + seed.second));
    const U step = Mix((start ^ seed.second) + receivers) | 1u;
    for (int i = 0; i < lanes && t + i < tile.count; ++i) {
      uint32_t* word = words + (t + i) * heads.stride;
      for (int64_t head = 0; head < heads.count; ++head) {
        word[head] = start[i] + static_cast<uint32_t>(head) * step[i];
      }
    }
  }
  const Vector<A, lanes> scale = All<A, lanes>(static_cast<A>(dropout.scale));
  heads.ForEachVector(tile.count, [&](int64_t place, int64_t) JAXGRAPH_LAMBDA {
    const auto kept = Mix(LoadBits<U>(words + place)) >= U{} + dropout.threshold;
    const auto keep = __builtin_convertvector(kept, Mask);
    const auto weight = Load<A, lanes>(from + place);
    Store<A, lanes>(to + place, keep ? weight * scale : Vector<A, lanes>{});
  });
}

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_DROPOUT_H_
