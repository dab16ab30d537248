// The logits of attention.

#ifndef JAXGRAPH_LOGITS_H_
#define JAXGRAPH_LOGITS_H_

#include "tile_sums.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

// Rows ahead at which the numbers of a row itself are fetched.
constexpr int64_t kLogitRowsAhead = 16;

// e = h * (h >= 0 ? above : below), with h the sum (GAT) or the product (dot) of a row and a
// neighbor, or the logit itself (GATv2).
template <class A>
struct Slopes {
  A above = 1, below = 1;

  template <class T>
  explicit Slopes(const LogitArguments<T>& logits) {
    if (logits.kind == Attention::kGat) below = static_cast<A>(logits.parameter);
    if (logits.kind == Attention::kDot) above = below = static_cast<A>(logits.parameter);
  }

  JAXGRAPH_INLINE Vector<A, kLanes<A>> At(const Vector<A, kLanes<A>>& h) const {
    const auto zero = Vector<A, kLanes<A>>{};
    return h >= zero ? zero + above : zero + below;
  }
};

// <a, leaky_relu(x + z)>
template <class T, int lanes>
JAXGRAPH_INLINE Vector<Accumulator<T>, lanes> HiddenTerm(const T* x, const T* z,
                                                         const Accumulator<T>* attention,
                                                         Accumulator<T> slope) {
  using A = Accumulator<T>;
  const auto h = Load<A, lanes>(x) + Load<A, lanes>(z);
  return Load<A, lanes>(attention) * (h >= Vector<A, lanes>{} ? h : h * slope);
}

template <class T>
JAXGRAPH_INLINE Accumulator<T> HiddenDot(const T* x, const T* z, const Accumulator<T>* attention,
                                         int64_t width, Accumulator<T> slope) {
  return TotalOver<Accumulator<T>>(width, [&](auto constant, int64_t c) JAXGRAPH_LAMBDA {
    return HiddenTerm<T, decltype(constant)::kValue>(x + c, z + c, attention + c, slope);
  });
}

template <class T, int fixed>
void TileHiddenDots(const LogitArguments<T>& logits, const T* row, int64_t width, const Tile& tile,
                    const Heads<Accumulator<T>, fixed>& heads, Accumulator<T>* to) {
  using A = Accumulator<T>;
  const int64_t row_size = heads.count * width;
  const auto slope = static_cast<A>(logits.parameter);
  heads.Clear(tile.count, to);
  for (int t = 0; t < tile.count; ++t) {
    FetchAhead(logits.neighbor, row_size, tile, t);
    const T* z = logits.neighbor + int64_t{tile.neighbors[t]} * row_size;
    HeadProducts(
        heads, width, to + t * heads.stride,
        [&](int64_t head, int64_t c) JAXGRAPH_LAMBDA {
          const int64_t at = head * width + c;
          return HiddenTerm<T, kLanes<A>>(row + at, z + at, logits.attention + at, slope);
        },
        [&](int64_t head) JAXGRAPH_LAMBDA {
          const int64_t at = head * width;
          return HiddenDot(row + at, z + at, logits.attention + at, width, slope);
        });
  }
}

// The h of `Slopes`, for a row and the neighbors of a tile.
template <class T, int fixed>
void TileHidden(const LogitArguments<T>& logits, int64_t row, int64_t width, const Tile& tile,
                const Heads<Accumulator<T>, fixed>& heads, Accumulator<T>* h) {
  using A = Accumulator<T>;
  if (logits.kind == Attention::kGatV2) {
    TileHiddenDots(logits, logits.row + row * heads.count * width, width, tile, heads, h);
  } else if (logits.kind == Attention::kDot) {
    const T* x = logits.row + row * heads.count * width;
    TileDots(x, HeadRows<T>(logits.neighbor, heads.count, width, false), width, tile, heads, h);
  } else {
    GatherHeads(logits.neighbor_logits, logits.neighbor_stride, true, tile, heads, h);
    const A* x = logits.row_logits + row * heads.count;
    __builtin_prefetch(x + kLogitRowsAhead * heads.count);
    const auto own = heads.Repeat(x, 0);
    heads.ForEachVector(tile.count, [&](int64_t place, int64_t block) JAXGRAPH_LAMBDA {
      const auto added = block == 0 ? own : heads.Repeat(x, block);
      Store<A, kLanes<A>>(h + place, Load<A, kLanes<A>>(h + place) + added);
    });
  }
}

// The logits; -inf after the last edge of the tile, where exp is then 0.
template <class A, int fixed>
void TileLogits(const Slopes<A>& slopes, const Tile& tile, const Heads<A, fixed>& heads,
                const A* h, A* logits) {
  heads.ForEachVector(tile.count, [&](int64_t place, int64_t) JAXGRAPH_LAMBDA {
    const auto hidden = Load<A, kLanes<A>>(h + place);
    Store<A, kLanes<A>>(logits + place, hidden * slopes.At(hidden));
  });
  heads.Pad(tile.count, -std::numeric_limits<A>::infinity(), logits);
}

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_LOGITS_H_
