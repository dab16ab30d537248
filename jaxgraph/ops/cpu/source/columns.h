// The columns of a row as vectors: the start and the head of each.

#ifndef JAXGRAPH_COLUMNS_H_
#define JAXGRAPH_COLUMNS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "vectors.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

constexpr int kMostVectors = 8;

// Consecutive vectors that are processed together. Where the columns of a head are no multiple of
// the lanes, its last vector overlaps the one before. Both are in the same run, so that all are
// read before any is written.
struct Run {
  int count;
  int64_t offset[kMostVectors];
  int64_t head[kMostVectors];
  int64_t within[kMostVectors];  // from the start of the head
};

struct Columns {
  int lanes;
  std::vector<Run> runs;
};

// Lanes of vectors for `width` columns: full registers, or, for fewer columns, one of two smaller
// sizes (each is compiled separately).
template <class A>
int LanesFor(int64_t width) {
  if (width >= kLanes<A>) return kLanes<A>;
  return width >= 4 && kLanes<A> > 4 ? 4 : 1;
}

// heads x width columns as vectors that do not cross heads, in runs of 1, 2, 3, 4 or 8 vectors, at
// most `most`.
inline Columns SplitColumns(int64_t heads, int64_t width, int64_t lanes, int most) {
  const int64_t per_head = (width + lanes - 1) / lanes;
  const int64_t vectors = heads * per_head;
  // Whether the vectors before and after `cut` overlap.
  const auto splits_pair = [&](int64_t cut) {
    return width % lanes != 0 && cut < vectors && cut % per_head == per_head - 1 && per_head > 1;
  };
  Columns columns{static_cast<int>(lanes), {}};
  for (int64_t first = 0; first < vectors;) {
    Run run{};
    for (const int count : {8, 4, 3, 2, 1}) {
      if (count > most || first + count > vectors || splits_pair(first + count)) continue;
      run.count = count;
      break;
    }
    for (int v = 0; v < run.count; ++v) {
      const int64_t head = (first + v) / per_head;
      const int64_t within = (first + v) % per_head * lanes;
      run.head[v] = head;
      run.within[v] = std::min(within, width - lanes);
      run.offset[v] = head * width + run.within[v];
    }
    columns.runs.push_back(run);
    first += run.count;
  }
  return columns;
}

// function(Constant<count>) for the counts of vectors of a run of at most `most`.
template <int most, class Function>
JAXGRAPH_INLINE void WithCount(int count, Function function) {
  switch (count) {
    case 1: return function(Constant<1>{});
    case 2: return function(Constant<2>{});
    case 3: return function(Constant<3>{});
    case 4: return function(Constant<4>{});
    default:
      if constexpr (most == 8) return function(Constant<8>{});
  }
}

// function(Constant<lanes>) for a result of LanesFor.
template <class A, class Function>
JAXGRAPH_INLINE void WithLanes(int lanes, Function function) {
  if (lanes == 1) return function(Constant<1>{});
  if constexpr (kLanes<A> > 4) {
    if (lanes == 4) return function(Constant<4>{});
  }
  function(Constant<kLanes<A>>{});
}

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_COLUMNS_H_
