// Sums over the neighbors of a tile, and products with each of them.

#ifndef JAXGRAPH_TILE_SUMS_H_
#define JAXGRAPH_TILE_SUMS_H_

#include "columns.h"
#include "product.h"
#include "tiles.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

// Fetches the row of a later neighbor.
template <class T>
JAXGRAPH_INLINE void FetchAhead(const T* table, int64_t stride, const Tile& tile, int t) {
  const T* next = table + tile.Ahead(t, kColumnsAhead) * stride;
  for (int64_t c = 0; c < stride; c += 64 / int64_t{sizeof(T)}) __builtin_prefetch(next + c);
}

// to_h = the sum over the columns of head h. term(h, c) returns a vector of terms from column c on;
// all(h) returns the whole sum, for heads narrower than a vector.
template <class A, int fixed, class Term, class All>
JAXGRAPH_INLINE void HeadProducts(const Heads<A, fixed>& heads, int64_t width, A* to, Term term,
                                  All all) {
  constexpr int lanes = kLanes<A>;
  if (width < lanes) {
    for (int64_t head = 0; head < heads.count; ++head) to[head] = all(head);
    return;
  }
  // The last vector overlaps the one before: only its last lanes are new.
  const auto rest = static_cast<int32_t>(width % lanes);
  Order<A, lanes> lane{};
  for (int i = 0; i < lanes; ++i) lane[i] = i;
  const auto is_new = lane >= Order<A, lanes>{} + (lanes - rest);
  StoreTotals(heads, to, [&](int64_t head) JAXGRAPH_LAMBDA {
    auto sum = term(head, 0);
    for (int64_t c = lanes; c + lanes <= width; c += lanes) sum += term(head, c);
    if (rest > 0) sum += is_new ? term(head, width - lanes) : Vector<A, lanes>{};
    return sum;
  });
}

// Rows of columns: head h of a row starts `step * h` numbers after its first head; `step` is 0
// where all heads share the columns.
template <class T>
struct HeadRows {
  const T* data;
  int64_t stride;  // of rows
  int64_t step;

  HeadRows(const T* data, int64_t heads, int64_t width, bool is_shared)
      : data(data), stride(is_shared ? width : heads * width), step(is_shared ? 0 : width) {}

  const T* operator[](int64_t row) const { return data + row * stride; }
};

// The products of a row with the neighbors of a tile, per head.
template <class T, int fixed>
void TileDots(const T* row, const HeadRows<T>& table, int64_t width, const Tile& tile,
              const Heads<Accumulator<T>, fixed>& heads, Accumulator<T>* to) {
  using A = Accumulator<T>;
  heads.Clear(tile.count, to);
  for (int t = 0; t < tile.count; ++t) {
    FetchAhead(table.data, table.stride, tile, t);
    const T* z = table[tile.neighbors[t]];
    HeadProducts(
        heads, width, to + t * heads.stride,
        [&](int64_t head, int64_t c) JAXGRAPH_LAMBDA {
          return Load<A, kLanes<A>>(row + head * width + c) *
                 Load<A, kLanes<A>>(z + head * table.step + c);
        },
        [&](int64_t head) JAXGRAPH_LAMBDA {
          return Dot(row + head * width, z + head * table.step, width);
        });
  }
}

template <class A>
struct TileWeights {
  const Tile& tile;
  int64_t stride;    // of the edges in `weights`
  const A* weights;  // per edge and head
};

// `count` sums y = scale y + sum_t w_t z_t, a few edges at a time so that additions need not wait
// for each other. `skips`: whether rows with a weight of 0 are left out; such rows may hold
// anything, NaN too. If rows are not left out, `may_skip` is set and a sum is not finite, this
// writes nothing and returns false.
template <class T, int lanes, int count, bool skips>
JAXGRAPH_INLINE bool AddWeightedRun(const Run& run, const TileWeights<Accumulator<T>>& w,
                                    const HeadRows<T>& table, bool fetch, bool may_skip,
                                    const Accumulator<T>* scale, Accumulator<T>* y) {
  using A = Accumulator<T>;
  using V = Vector<A, lanes>;
  constexpr int unrolled = count <= 2 ? 4 : count <= 4 ? 2 : 1;
  V sums[unrolled][count]{};
  const A* weights[count];
  int64_t from[count];
  JAXGRAPH_UNROLL
  for (int v = 0; v < count; ++v) {
    from[v] = run.head[v] * table.step + run.within[v];
    sums[0][v] = Load<A, lanes>(y + run.offset[v]);
    if (scale != nullptr) sums[0][v] *= scale[run.head[v]];
    weights[v] = w.weights + run.head[v];
  }
  const auto add = [&](int t, V (&to)[count]) JAXGRAPH_LAMBDA {
    if (fetch) {
      const T* next = table[w.tile.Ahead(t, kColumnsAhead)];
      JAXGRAPH_UNROLL
      for (int v = 0; v < count; ++v) __builtin_prefetch(next + from[v]);
    }
    const T* z = table[w.tile.neighbors[t]];
    JAXGRAPH_UNROLL
    for (int v = 0; v < count; ++v) {
      const A weight = weights[v][t * w.stride];
      if (skips && weight == 0) continue;
      to[v] += weight * Load<A, lanes>(z + from[v]);
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
  HeadRows<T> table;
  bool may_skip;
  void (*function)(const WeightedSum&, const TileWeights<A>&, bool, const A*, A*);

  // `may_skip`: whether rows with a weight of 0 are skipped. `is_shared`: whether all heads have the
  // same columns of z.
  WeightedSum(const T* table, int64_t heads, int64_t width, bool may_skip, bool is_shared = false)
      : columns(SplitColumns(heads, width, LanesFor<A>(width), kMostVectors)),
        table(table, heads, width, is_shared),
        may_skip(may_skip) {
    WithLanes<A>(columns.lanes,
                 [&](auto constant) { function = &Add<decltype(constant)::kValue>; });
  }

  // `fetch`: whether this is the first use of the neighbors' rows. `scale`: per head, or null: 1.
  void operator()(const TileWeights<A>& w, bool fetch, const A* scale, A* y) const {
    function(*this, w, fetch, scale, y);
  }

  template <int lanes>
  static void Add(const WeightedSum& self, const TileWeights<A>& w, bool fetch, const A* scale,
                  A* y) {
    for (const Run& run : self.columns.runs) {
      WithCount<kMostVectors>(run.count, [&](auto constant) JAXGRAPH_LAMBDA {
        constexpr int count = decltype(constant)::kValue;
        const bool done = AddWeightedRun<T, lanes, count, false>(run, w, self.table, fetch,
                                                                 self.may_skip, scale, y);
        if (!done) AddSome<lanes, count>(run, w, self.table, scale, y);
      });
    }
  }

  // Kept out of the loop above, which nearly always suffices.
  template <int lanes, int count>
  static __attribute__((noinline)) void AddSome(const Run& run, const TileWeights<A>& w,
                                                const HeadRows<T>& table, const A* scale, A* y) {
    AddWeightedRun<T, lanes, count, true>(run, w, table, false, false, scale, y);
  }
};

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_TILE_SUMS_H_
