// Numbers per edge and head: their layout in a tile of edges, and their sums over the edges.

#ifndef JAXGRAPH_HEADS_H_
#define JAXGRAPH_HEADS_H_

#include <algorithm>
#include <cstring>

#include "columns.h"
#include "kernels.h"
#include "vectors.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

// The most edges of a tile, and the most numbers per edge and head in a tile.
constexpr int kTileEdges = 64;
constexpr int kTileNumbers = 16 * kTileEdges;

// Copies the numbers of all heads; common sizes are compiled separately.
template <class A>
JAXGRAPH_INLINE void CopyHeads(A* to, const A* from, int64_t heads) {
  switch (heads) {
    case 1: to[0] = from[0]; return;
    case 2: std::memcpy(to, from, 2 * sizeof(A)); return;
    case 4: std::memcpy(to, from, 4 * sizeof(A)); return;
    case 8: std::memcpy(to, from, 8 * sizeof(A)); return;
    default: for (int64_t head = 0; head < heads; ++head) to[head] = from[head];
  }
}

// The distance between edges with `count` numbers each.
template <class A>
constexpr int64_t HeadStride(int64_t count) {
  constexpr int64_t kWidth = kLanes<A>;
  if (count > kWidth) return (count + kWidth - 1) / kWidth * kWidth;
  int64_t stride = 1;
  while (stride < count) stride *= 2;
  return stride;
}

// The number of heads, and the layout of their numbers. `fixed`: the number, where code is compiled
// for it alone; 0: any number.
template <class A, int fixed>
struct HeadLayout {
  static constexpr int64_t count = fixed;
  static constexpr int64_t stride = HeadStride<A>(fixed);
  static constexpr int64_t blocks = std::max<int64_t>(stride / kLanes<A>, 1);
  static constexpr int64_t tile_edges = std::min<int64_t>(kTileEdges, kTileNumbers / stride);

  explicit HeadLayout(int64_t) {}
};

template <class A>
struct HeadLayout<A, 0> {
  int64_t count;
  int64_t stride;
  int64_t blocks;
  int64_t tile_edges;

  explicit HeadLayout(int64_t count)
      : count(count),
        stride(HeadStride<A>(count)),
        blocks(std::max<int64_t>(stride / kLanes<A>, 1)),
        tile_edges(std::min<int64_t>(kTileEdges, kTileNumbers / stride)) {}
};

// function(Constant<heads>) for common numbers of heads, else Constant<0>.
template <class A, class Function>
void WithHeads(int64_t heads, Function function) {
  if constexpr (kIsFast<A>) {
    switch (heads) {
      case 1: return function(Constant<1>{});
      case 4: return function(Constant<4>{});
      case 8: return function(Constant<8>{});
    }
  }
  function(Constant<0>{});
}

// The numbers of an edge are consecutive, so that a vector holds all heads of several edges, or
// (`blocks` > 1) some heads of one. Edges are `stride` numbers apart, a power of two or a multiple
// of a vector. The numbers between the last head and the next edge are arbitrary.
template <class A, int fixed>
struct Heads : HeadLayout<A, fixed> {
  static constexpr int kWidth = kLanes<A>;
  using V = Vector<A, kWidth>;
  using Layout = HeadLayout<A, fixed>;
  using Layout::blocks;
  using Layout::count;
  using Layout::Layout;
  using Layout::stride;

  // The number of vectors of `edges` edges.
  JAXGRAPH_INLINE int64_t Vectors(int64_t edges) const {
    return (edges * stride + kWidth - 1) / kWidth;
  }

  // The numbers of a block of heads, repeated over the lanes.
  JAXGRAPH_INLINE V Repeat(const A* from, int64_t block) const {
    if constexpr (fixed > 0) {
      return RepeatFixed(from, block);
    } else {
      const int64_t first = block * kWidth;
      A some[kWidth] = {};
      CopyHeads(some, from + first, std::min<int64_t>(count - first, kWidth));
      const V value = Load<A, kWidth>(some);
      if (stride >= kWidth) return value;
      Order<A, kWidth> order{};
      for (int i = 0; i < kWidth; ++i) order[i] = i & static_cast<int32_t>(stride - 1);
      return Shuffle<A, kWidth>(value, order);
    }
  }

  // The same for a fixed number of heads: a vector assembled in memory would have to wait for the
  // stores of its parts.
  JAXGRAPH_INLINE V RepeatFixed(const A* from, int64_t block) const {
    if constexpr (fixed >= kWidth) {
      return Load<A, kWidth>(from + block * kWidth);
    } else if constexpr (fixed == 1) {
      return All<A, kWidth>(from[0]);
    } else {
      using Words = Vector<int64_t, sizeof(V) / sizeof(int64_t)>;
      constexpr int kPerWord = sizeof(int64_t) / sizeof(A);
      constexpr int kWords = fixed / kPerWord;
      static_assert(kWords * kPerWord == fixed);
      Words place{}, value{};
      for (int i = 0; i < kWidth / kPerWord; ++i) place[i] = i % kWords;
      JAXGRAPH_UNROLL
      for (int word = 0; word < kWords; ++word) {
        const Words same = Words{} + LoadBits<int64_t>(from + word * kPerWord);
        value = place == word ? same : value;
      }
      return Reinterpret<V>(value);
    }
  }

  // Writes the first of the repeated numbers of a block of heads.
  JAXGRAPH_INLINE void Unpack(const V& value, int64_t block, A* to) const {
    const int64_t first = block * kWidth;
    A some[kWidth];
    Store<A, kWidth>(some, value);
    CopyHeads(to + first, some, std::min<int64_t>(count - first, kWidth));
  }

  // combine() of the lanes of the same head, in all of these lanes.
  template <class Combine>
  JAXGRAPH_INLINE V Fold(V value, Combine combine) const {
    for (int64_t shift = kWidth / 2; shift >= stride; shift /= 2) {
      Order<A, kWidth> order{};
      for (int i = 0; i < kWidth; ++i) order[i] = (i + static_cast<int32_t>(shift)) & (kWidth - 1);
      value = combine(value, Shuffle<A, kWidth>(value, order));
    }
    return value;
  }

  // combine() of the numbers of all edges, per head of a block, in all lanes of that head.
  template <class Combine>
  JAXGRAPH_INLINE V Over(const A* numbers, int64_t edges, int64_t block, V start,
                         Combine combine) const {
    for (int64_t v = block; v < Vectors(edges); v += blocks) {
      start = combine(start, Load<A, kWidth>(numbers + v * kWidth));
    }
    return Fold(start, combine);
  }

  // Sets numbers between the edges to 0, so that arithmetic on them is as fast as on others.
  JAXGRAPH_INLINE void Clear(int64_t edges, A* numbers) const {
    if (count < stride) std::fill_n(numbers, edges * stride, A{0});
  }

  // Fills the rest of the last vector, after the numbers of the last edge.
  JAXGRAPH_INLINE void Pad(int64_t edges, A value, A* numbers) const {
    const auto used = static_cast<int32_t>(edges * stride % kWidth);
    if (used == 0) return;
    A* last = numbers + (edges * stride - used);
    Order<A, kWidth> lane{};
    for (int i = 0; i < kWidth; ++i) lane[i] = i;
    Store<A, kWidth>(last, lane < Order<A, kWidth>{} + used ? Load<A, kWidth>(last) : V{} + value);
  }

  // function(place, block) for the vectors of `edges` edges.
  template <class Function>
  JAXGRAPH_INLINE void ForEachVector(int64_t edges, Function function) const {
    const int64_t end = Vectors(edges);
    for (int64_t v = 0, block = 0; v < end; ++v, block = block + 1 < blocks ? block + 1 : 0) {
      function(v * kWidth, block);
    }
  }
};

// Sums of vectors, one per head: term(head) is summed over its lanes. `count` is a power of two, at
// most the number of lanes; lane i of the result belongs to head i % count.
template <class A, int count, int step = 1, class Term>
JAXGRAPH_INLINE Vector<A, kLanes<A>> Totals(int first, Term term) {
  constexpr int lanes = kLanes<A>;
  if constexpr (step == count) {
    return term(first);
  } else {
    // Heads that differ in one bit are added in the lanes that differ in it.
    const auto even = Totals<A, count, 2 * step>(first, term);
    const auto odd = Totals<A, count, 2 * step>(first + step, term);
    Order<A, lanes> own{}, other{};
    for (int i = 0; i < lanes; ++i) {
      own[i] = (i & step) == 0 ? i : lanes + i;
      other[i] = (i & step) == 0 ? i ^ step : lanes + (i ^ step);
    }
    return Shuffle<A, lanes>(even, odd, own) + Shuffle<A, lanes>(even, odd, other);
  }
}

// to_h = the sum of the lanes of term(h), for all heads.
template <class A, int fixed, class Term>
JAXGRAPH_INLINE void StoreTotals(const Heads<A, fixed>& heads, A* to, Term term) {
  const auto store = [&](auto constant) JAXGRAPH_LAMBDA {
    constexpr int count = decltype(constant)::kValue;
    const auto totals = heads.Fold(Totals<A, count>(0, term), [](auto x, auto y) { return x + y; });
    std::memcpy(to, &totals, count * sizeof(A));
  };
  if (heads.count == 2) return store(Constant<2>{});
  if constexpr (kLanes<A> >= 4) {
    if (heads.count == 4) return store(Constant<4>{});
  }
  if constexpr (kLanes<A> >= 8) {
    if (heads.count == 8) return store(Constant<8>{});
  }
  for (int64_t head = 0; head < heads.count; ++head) to[head] = Total<A, kLanes<A>>(term(head));
}

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_HEADS_H_
