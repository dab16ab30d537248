// How the neighbors of a node are drawn: `jaxgraph/sampling/draw.py` has the same in NumPy, with the
// same numbers.

#ifndef JAXGRAPH_DRAWS_H_
#define JAXGRAPH_DRAWS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace jaxgraph {

// SplitMix64.
inline uint64_t Mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

inline uint64_t LayerKey(uint64_t key, int64_t layer) { return Mix(key ^ Mix(uint64_t(layer))); }

// 32 bits of each draw of one row; two draws share a hash.
class Bits {
 public:
  Bits(uint64_t layer_key, int32_t row) : key_(Mix(layer_key ^ uint64_t(row))) {}

  uint64_t operator()(uint64_t draw) const {
    return uint32_t(Mix(key_ + (draw >> 1) * 0x9e3779b97f4a7c15u) >> (32 * (draw & 1)));
  }

 private:
  uint64_t key_;
};

// The number below n that 32 bits stand for.
inline uint64_t Below(uint64_t bits, uint64_t n) { return bits * n >> 32; }

// The edges by receiver, see `jaxgraph.sampling.neighbors.Neighbors`.
struct NeighborsOfNodes {
  int64_t num_nodes;
  const int64_t* pointers;
  const int32_t* senders;
  const int32_t* edges;       // the number of each edge
  const float* weights;       // null: all alike
  const int64_t* cumulative;  // of the weights, where they are drawn with replacement
};

// The edges of one receiver, to draw `fanout` of.
struct Row {
  int32_t id;
  int64_t first, degree, fanout;
};

// Each of these writes the positions of the edges that it takes, at most `Most()`, and returns the
// end.

inline int64_t* TakeAll(const Row& row, int64_t* to) {
  for (int64_t i = 0; i < row.degree; ++i) to[i] = row.first + i;
  return to + row.degree;
}

// Without replacement (Floyd): draw i takes a number up to degree - fanout + i, or, where that was
// taken, this largest one.
class DrawDistinct {
 public:
  static int64_t Most(const Row& row) { return std::min(row.degree, row.fanout); }

  int64_t* operator()(const NeighborsOfNodes&, uint64_t key, const Row& row, int64_t* to) {
    if (row.degree <= row.fanout) return TakeAll(row, to);
    const Bits bits(key, row.id);
    const bool is_exact = row.degree <= kBits;
    for (int64_t i = 0; i < row.fanout; ++i) {
      const int64_t last = row.degree - row.fanout + i;
      int64_t drawn = int64_t(Below(bits(i), last + 1));
      bool is_taken = IsMarked(drawn);
      if (is_taken && !is_exact) is_taken = std::find(to, to + i, row.first + drawn) != to + i;
      if (is_taken) drawn = last;
      Mark(drawn);
      to[i] = row.first + drawn;
    }
    for (int64_t i = 0; i < row.fanout; ++i) marks_[Word(to[i] - row.first)] = 0;
    return to + row.fanout;
  }

 private:
  static constexpr int64_t kBits = 1024;

  static int64_t Word(int64_t number) { return number % kBits / 64; }
  bool IsMarked(int64_t number) const { return marks_[Word(number)] >> (number % 64) & 1; }
  void Mark(int64_t number) { marks_[Word(number)] |= uint64_t{1} << (number % 64); }

  uint64_t marks_[kBits / 64] = {};
};

struct DrawRepeated {
  static int64_t Most(const Row& row) { return row.degree == 0 ? 0 : row.fanout; }

  int64_t* operator()(const NeighborsOfNodes&, uint64_t key, const Row& row, int64_t* to) {
    if (row.degree == 0) return to;
    const Bits bits(key, row.id);
    for (int64_t i = 0; i < row.fanout; ++i) to[i] = row.first + Below(bits(i), row.degree);
    return to + row.fanout;
  }
};

// LABOR-0 (Balin and Catalyurek, 2023): all receivers share the number of a sender.
struct DrawTogether {
  static int64_t Most(const Row& row) { return row.degree; }

  int64_t* operator()(const NeighborsOfNodes& all, uint64_t key, const Row& row, int64_t* to) {
    if (row.degree <= row.fanout) return TakeAll(row, to);
    for (int64_t at = row.first; at < row.first + row.degree; ++at) {
      *to = at;
      to += Bits(key, all.senders[at])(1) * uint64_t(row.degree) <= uint64_t(row.fanout) << 32;
    }
    return to;
  }
};

}  // namespace jaxgraph

#endif  // JAXGRAPH_DRAWS_H_
