// Sums over the neighbors of a tile of the hidden terms of GATv2's logits.

#ifndef JAXGRAPH_HIDDEN_SUM_H_
#define JAXGRAPH_HIDDEN_SUM_H_

#include "tile_sums.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

// Vectors of columns processed together: each is up to three vectors.
constexpr int kMostHidden = 4;

// With h_t = x + z_t for the row and its neighbors: y += a sum_t w_t leaky_relu'(h_t), and, unless
// u is null, u += sum_t w_t leaky_relu(h_t).
template <class T>
struct HiddenSum {
  using A = Accumulator<T>;
  const LogitArguments<T>& logits;
  Columns columns;
  int64_t stride;
  void (*function)(const HiddenSum&, const TileWeights<A>&, const T*, A*, A*);

  HiddenSum(const LogitArguments<T>& logits, int64_t heads, int64_t width)
      : logits(logits),
        columns(SplitColumns(heads, width, LanesFor<A>(width), kMostHidden)),
        stride(heads * width) {
    WithLanes<A>(columns.lanes,
                 [&](auto constant) { function = &Add<decltype(constant)::kValue>; });
  }

  void operator()(const TileWeights<A>& w, int64_t row, A* y, A* u) const {
    function(*this, w, logits.row + row * stride, y, u);
  }

  template <int lanes>
  static void Add(const HiddenSum& self, const TileWeights<A>& w, const T* x, A* y, A* u) {
    for (const Run& run : self.columns.runs) {
      WithCount<kMostHidden>(run.count, [&](auto constant) JAXGRAPH_LAMBDA {
        constexpr int count = decltype(constant)::kValue;
        if (u == nullptr) {
          self.template AddRun<lanes, count, false>(run, w, x, y, u);
        } else {
          self.template AddRun<lanes, count, true>(run, w, x, y, u);
        }
      });
    }
  }

  template <int lanes, int count, bool both>
  JAXGRAPH_INLINE void AddRun(const Run& run, const TileWeights<A>& w, const T* x, A* y,
                              A* u) const {
    using V = Vector<A, lanes>;
    const A slope = static_cast<A>(logits.parameter);
    V rows[count], sums[count], products[count];
    const A* weights[count];
    JAXGRAPH_UNROLL
    for (int v = 0; v < count; ++v) {
      rows[v] = Load<A, lanes>(x + run.offset[v]);
      sums[v] = products[v] = V{};
      weights[v] = w.weights + run.head[v];
    }
    for (int t = 0; t < w.tile.count; ++t) {
      const T* z = logits.neighbor + int64_t{w.tile.neighbors[t]} * stride;
      JAXGRAPH_UNROLL
      for (int v = 0; v < count; ++v) {
        const V h = rows[v] + Load<A, lanes>(z + run.offset[v]);
        const A weight = weights[v][t * w.stride];
        const V derivative = h >= V{} ? V{} + weight : V{} + weight * slope;
        sums[v] += derivative;
        if constexpr (both) products[v] += derivative * h;
      }
    }
    // All columns are read before any is written: the last two vectors of a head may overlap.
    JAXGRAPH_UNROLL
    for (int v = 0; v < count; ++v) {
      sums[v] = sums[v] * Load<A, lanes>(logits.attention + run.offset[v]) +
                Load<A, lanes>(y + run.offset[v]);
      if constexpr (both) products[v] += Load<A, lanes>(u + run.offset[v]);
    }
    JAXGRAPH_UNROLL
    for (int v = 0; v < count; ++v) {
      Store<A, lanes>(y + run.offset[v], sums[v]);
      if constexpr (both) Store<A, lanes>(u + run.offset[v], products[v]);
    }
  }
};

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_HIDDEN_SUM_H_
