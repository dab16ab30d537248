// Sums over the neighbors of a tile, and products with each of them.

#ifndef JAXGRAPH_TILE_SUMS_H_
#define JAXGRAPH_TILE_SUMS_H_

#include "columns.h"
#include "product.h"
#include "tiles.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

// Fetches the row of a neighbor that will be needed soon.
template <class T>
JAXGRAPH_INLINE void FetchAhead(const T* table, int64_t stride, const Tile& tile, int t) {
  const T* next = table + tile.Ahead(t, kColumnsAhead) * stride;
  for (int64_t c = 0; c < stride; c += 64 / int64_t{sizeof(T)}) __builtin_prefetch(next + c);
}

// to_h = the sum over the columns of head h: term(c) is that of a vector of columns at c, all(c) that
// of all columns of a head that starts at c.
template <class A, int fixed, class Term, class All>
JAXGRAPH_INLINE void HeadProducts(const Heads<A, fixed>& heads, int64_t width, A* to, Term term,
                                  All all) {
  if (width % kLanes<A> != 0) {
    for (int64_t head = 0; head < heads.count; ++head) to[head] = all(head * width);
    return;
  }
  StoreTotals(heads, to, [&](int64_t head) JAXGRAPH_LAMBDA {
    auto sum = term(head * width);
    for (int64_t c = kLanes<A>; c < width; c += kLanes<A>) sum += term(head * width + c);
    return sum;
  });
}

// The products of a row with the neighbors of a tile, per head.
template <class T, int fixed>
void TileDots(const T* row, const T* table, int64_t width, const Tile& tile,
              const Heads<Accumulator<T>, fixed>& heads, Accumulator<T>* to) {
  using A = Accumulator<T>;
  const int64_t row_size = heads.count * width;
  heads.Clear(tile.count, to);
  for (int t = 0; t < tile.count; ++t) {
    FetchAhead(table, row_size, tile, t);
    const T* z = table + int64_t{tile.neighbors[t]} * row_size;
    HeadProducts(
        heads, width, to + t * heads.stride,
        [&](int64_t c) JAXGRAPH_LAMBDA {
          return Load<A, kLanes<A>>(row + c) * Load<A, kLanes<A>>(z + c);
        },
        [&](int64_t c) JAXGRAPH_LAMBDA { return Dot(row + c, z + c, width); });
  }
}

template <class A>
struct TileWeights {
  const Tile& tile;
  int64_t stride;    // of the edges in `weights`
  const A* weights;  // per edge and head
};

// `count` sums y = scale y + sum_t w_t z_t, a few edges at a time so that an addition need not wait
// for the last one. `skips`: whether a row with a weight of 0 is left out, which may hold anything,
// NaN too. Else nothing is written, and false returned, where that could make a difference and
// `may_skip` says that it matters.
template <class T, int lanes, int count, bool skips>
JAXGRAPH_INLINE bool AddWeightedRun(const Run& run, const TileWeights<Accumulator<T>>& w,
                                    const T* table, int64_t stride, bool fetch, bool may_skip,
                                    const Accumulator<T>* scale, Accumulator<T>* y) {
  using A = Accumulator<T>;
  using V = Vector<A, lanes>;
  constexpr int unrolled = count <= 2 ? 4 : count <= 4 ? 2 : 1;
  V sums[unrolled][count]{};
  const A* weights[count];
  JAXGRAPH_UNROLL
  for (int v = 0; v < count; ++v) {
    sums[0][v] = Load<A, lanes>(y + run.offset[v]);
    if (scale != nullptr) sums[0][v] *= scale[run.head[v]];
    weights[v] = w.weights + run.head[v];
  }
  const auto add = [&](int t, V (&to)[count]) JAXGRAPH_LAMBDA {
    if (fetch) {
      const T* next = table + w.tile.Ahead(t, kColumnsAhead) * stride;
      JAXGRAPH_UNROLL
      for (int v = 0; v < count; ++v) __builtin_prefetch(next + run.offset[v]);
    }
    const T* z = table + int64_t{w.tile.neighbors[t]} * stride;
    JAXGRAPH_UNROLL
    for (int v = 0; v < count; ++v) {
      const A weight = weights[v][t * w.stride];
      if (skips && weight == 0) continue;
      to[v] += weight * Load<A, lanes>(z + run.offset[v]);
    }
  };
  int t = 0;
  for (; t + unrolled <= w.tile.count; t += unrolled) {
    JAXGRAPH_UNROLL
    for (int u = 0; u < unrolled; ++u) add(t + u, sums[u]);
  }
  for (; t < w.tile.count; ++t) add(t, sums[0]);
  JAXGRAPH_UNROLL
  for (int v = 0; v < count; ++v) {
    JAXGRAPH_UNROLL
    for (int u = 1; u < unrolled; ++u) sums[0][v] += sums[u][v];
  }
  if (!skips && may_skip) {
    V zero{};
    JAXGRAPH_UNROLL
    for (int v = 0; v < count; ++v) zero += sums[0][v] * A{0};
    // NaN where a sum is not finite.
    if (Total<A, lanes>(zero) != 0) return false;
  }
  JAXGRAPH_UNROLL
  for (int v = 0; v < count; ++v) Store<A, lanes>(y + run.offset[v], sums[0][v]);
  return true;
}

// y = scale y + sum_t w_t z_t over the columns of all heads.
template <class T>
struct WeightedSum {
  using A = Accumulator<T>;
  Columns columns;
  int64_t stride;
  bool may_skip;
  void (*function)(const WeightedSum&, const TileWeights<A>&, const T*, bool, const A*, A*);

  // `may_skip`: whether rows with a weight of 0 are left out.
  WeightedSum(int64_t heads, int64_t width, bool may_skip)
      : columns(SplitColumns(heads, width, LanesFor<A>(width), kMostVectors)),
        stride(heads * width),
        may_skip(may_skip) {
    WithLanes<A>(columns.lanes,
                 [&](auto constant) { function = &Add<decltype(constant)::kValue>; });
  }

  // `fetch`: whether this is the first look at the neighbors. `scale`: per head, or null: 1.
  void operator()(const TileWeights<A>& w, const T* table, bool fetch, const A* scale, A* y) const {
    function(*this, w, table, fetch, scale, y);
  }

  template <int lanes>
  static void Add(const WeightedSum& self, const TileWeights<A>& w, const T* table, bool fetch,
                  const A* scale, A* y) {
    for (const Run& run : self.columns.runs) {
      WithCount<kMostVectors>(run.count, [&](auto constant) JAXGRAPH_LAMBDA {
        constexpr int count = decltype(constant)::kValue;
        const bool done = AddWeightedRun<T, lanes, count, false>(
            run, w, table, self.stride, fetch, self.may_skip, scale, y);
        if (!done) AddSome<lanes, count>(run, w, table, self.stride, scale, y);
      });
    }
  }

  // Apart from the loop that is taken nearly always.
  template <int lanes, int count>
  static __attribute__((noinline)) void AddSome(const Run& run, const TileWeights<A>& w,
                                                const T* table, int64_t stride, const A* scale,
                                                A* y) {
    AddWeightedRun<T, lanes, count, true>(run, w, table, stride, false, false, scale, y);
  }
};

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_TILE_SUMS_H_
