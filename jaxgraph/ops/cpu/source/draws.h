// How the neighbors of a node are drawn: `tests/oracles/sampling.py` has the same in NumPy, with the
// same numbers.

#ifndef JAXGRAPH_DRAWS_H_
#define JAXGRAPH_DRAWS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace jaxgraph {

// SplitMix64.
inline uint64_t Mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Of a set of edges in a layer.
inline uint64_t LayerKey(uint64_t key, uint64_t layer, uint64_t set) {
  return Mix(key ^ Mix(layer | set << 32));
}

// 32 bits of each draw of one row; two draws share a hash.
class Bits {
 public:
  Bits(uint64_t layer_key, int32_t row) : key_(Mix(layer_key ^ uint64_t(row))) {}

  // Draws 2 i and 2 i + 1, the first in the lower half.
  uint64_t Pair(uint64_t i) const { return Mix(key_ + i * 0x9e3779b97f4a7c15u); }
  uint64_t operator()(uint64_t draw) const { return uint32_t(Pair(draw / 2) >> (draw % 2 * 32)); }

 private:
  uint64_t key_;
};

// The number below n that 32 bits stand for.
inline uint64_t Below(uint64_t bits, uint64_t n) { return bits * n >> 32; }

// The edges by receiver, see `jaxgraph.sampling.neighbors.Neighbors`.
struct NeighborsOfNodes {
  const int64_t* pointers;
  const int32_t* senders;
  const int32_t* edges;       // the number of each edge
  const int64_t* cumulative;  // sums of the weights; null: all alike
};

// The edges of one receiver, to draw `fanout` of.
struct Row {
  int32_t id;
  int64_t first, degree, fanout;
};

// Each of these writes the positions of the edges that it takes, at most `Most()`, requests their
// senders, and returns the end.

inline int64_t* TakeAll(const NeighborsOfNodes& all, const Row& row, int64_t* to) {
  for (int64_t i = 0; i < row.degree; ++i) to[i] = row.first + i;
  for (int64_t i = 0; i < row.degree; i += 16) __builtin_prefetch(all.senders + row.first + i);
  if (row.degree > 0) __builtin_prefetch(all.senders + row.first + row.degree - 1);
  return to + row.degree;
}

// Sets of numbers below 64, below 2048, and of any numbers, of which it knows some not to be in it.
class FewBits {
 public:
  explicit FewBits(int64_t) {}
  bool Has(uint64_t number) const { return word_ >> number & 1; }
  void Add(uint64_t number) { word_ |= uint64_t{1} << number; }

 private:
  uint64_t word_ = 0;
};

class ManyBits {
 public:
  static constexpr int64_t kBits = 2048;

  explicit ManyBits(int64_t numbers) {
    for (int64_t i = 0; i < numbers && i < kBits; i += 512) std::memset(words_ + i / 64, 0, 64);
  }
  bool Has(uint64_t number) const { return words_[number % kBits / 64] >> (number % 64) & 1; }
  void Add(uint64_t number) { words_[number % kBits / 64] |= uint64_t{1} << (number % 64); }

 private:
  uint64_t words_[kBits / 64];
};

// Without replacement (Floyd): draw i takes a number up to degree - fanout + i, or, where that was
// taken, this largest one.
struct DrawDistinct {
  static int64_t Most(const Row& row) { return std::min(row.degree, row.fanout); }

  int64_t* operator()(const NeighborsOfNodes& all, uint64_t key, const Row& row, int64_t* to) {
    if (row.degree <= row.fanout) return TakeAll(all, row, to);
    if (row.degree <= 64) return Draw<FewBits, true>(all, key, row, to);
    if (row.degree <= ManyBits::kBits) return Draw<ManyBits, true>(all, key, row, to);
    return Draw<ManyBits, false>(all, key, row, to);
  }

 private:
  template <class Set, bool kIsExact>
  static int64_t* Draw(const NeighborsOfNodes& all, uint64_t key, const Row& row, int64_t* to) {
    const Bits bits(key, row.id);
    const int32_t* const senders = all.senders + row.first;
    Set set(row.degree);
    const auto draw = [&](int64_t i, uint64_t half) {
      const uint64_t last = row.degree - row.fanout + i;
      const uint64_t drawn = Below(half, last + 1);
      bool is_taken = set.Has(drawn);
      if (!kIsExact && is_taken) {
        is_taken = std::find(to, to + i, row.first + int64_t(drawn)) != to + i;
      }
      // Without a branch, which would often be mispredicted.
      const uint64_t taken = drawn ^ ((drawn ^ last) & (0 - uint64_t(is_taken)));
      set.Add(taken);
      to[i] = row.first + int64_t(taken);
      __builtin_prefetch(senders + taken);
    };
    int64_t i = 0;
    for (; i + 1 < row.fanout; i += 2) {
      const uint64_t pair = bits.Pair(i / 2);
      draw(i, uint32_t(pair));
      draw(i + 1, pair >> 32);
    }
    if (i < row.fanout) draw(i, uint32_t(bits.Pair(i / 2)));
    return to + row.fanout;
  }
};

struct DrawRepeated {
  static int64_t Most(const Row& row) { return row.degree == 0 ? 0 : row.fanout; }

  int64_t* operator()(const NeighborsOfNodes& all, uint64_t key, const Row& row, int64_t* to) {
    if (row.degree == 0) return to;
    const Bits bits(key, row.id);
    for (int64_t i = 0; i < row.fanout; ++i) {
      to[i] = row.first + Below(bits(i), row.degree);
      __builtin_prefetch(all.senders + to[i], 0, 0);
    }
    return to + row.fanout;
  }
};

// LABOR-0 (Balin and Catalyurek, 2023): all receivers share the number of a sender.
struct DrawTogether {
  static int64_t Most(const Row& row) { return row.degree; }

  int64_t* operator()(const NeighborsOfNodes& all, uint64_t key, const Row& row, int64_t* to) {
    if (row.degree <= row.fanout) return TakeAll(all, row, to);
    for (int64_t at = row.first; at < row.first + row.degree; ++at) {
      *to = at;
      const uint64_t number = Mix(key ^ uint64_t(all.senders[at])) >> 32;
      to += number * uint64_t(row.degree) <= uint64_t(row.fanout) << 32;
    }
    return to;
  }
};

// The weights of the edges of a row, as sums in whole units.
class Weights {
 public:
  Weights(const NeighborsOfNodes& all, const Row& row)
      : begin_(all.cumulative + row.first), end_(begin_ + row.degree) {}

  uint64_t Of(int64_t place) const { return begin_[place + 1] - begin_[place]; }
  uint64_t total() const { return *end_ - *begin_; }

  // A place in proportion to its weight.
  int64_t Draw(uint64_t half) const {
    const int64_t sum = *begin_ + int64_t(Part(half, total()));
    return std::upper_bound(begin_, end_ + 1, sum) - 1 - begin_;
  }

  // The number below n, of up to 63 bits, that 32 bits stand for.
  static uint64_t Part(uint64_t half, uint64_t n) {
    return half * (n >> 32) + (half * uint32_t(n) >> 32);
  }

 private:
  const int64_t *begin_, *end_;
};

// By weight without replacement: a draw takes one of the edges that are left, in proportion to its
// weight. Edges that were taken are drawn again; after some tries those that are left are scanned.
struct DrawWeighted {
  static constexpr uint64_t kTries = 8;

  static int64_t Most(const Row& row) { return std::min(row.degree, row.fanout); }

  int64_t* operator()(const NeighborsOfNodes& all, uint64_t key, const Row& row, int64_t* to) {
    const Weights weights(all, row);
    const Bits bits(key, row.id);
    const int64_t* const begin = to;
    const bool takes_all = row.degree <= row.fanout;
    const auto is_taken = [&](int64_t place) {
      return std::find(begin, static_cast<const int64_t*>(to), row.first + place) != to;
    };
    const auto take = [&](int64_t place) {
      *to = row.first + place;
      __builtin_prefetch(all.senders + *to++);
      return weights.Of(place);
    };
    for (int64_t place = 0; takes_all && place < row.degree; ++place) {
      if (weights.Of(place) > 0) take(place);
    }
    uint64_t left = takes_all ? 0 : weights.total();
    for (uint64_t draw = 0; left > 0 && draw < uint64_t(row.fanout); ++draw) {
      const uint64_t first = draw * (kTries + 1);
      uint64_t tries = 0;
      int64_t place = weights.Draw(bits(first));
      while (is_taken(place) && ++tries < kTries) place = weights.Draw(bits(first + tries));
      if (tries == kTries) {
        uint64_t before = Weights::Part(bits(first + kTries), left);
        for (place = 0; is_taken(place) || before >= weights.Of(place); ++place) {
          if (!is_taken(place)) before -= weights.Of(place);
        }
      }
      left -= take(place);
    }
    return to;
  }
};

// By weight with replacement.
struct DrawWeightedRepeated {
  static int64_t Most(const Row& row) { return row.degree == 0 ? 0 : row.fanout; }

  int64_t* operator()(const NeighborsOfNodes& all, uint64_t key, const Row& row, int64_t* to) {
    const Weights weights(all, row);
    const Bits bits(key, row.id);
    const int64_t count = weights.total() == 0 ? 0 : row.fanout;
    for (int64_t i = 0; i < count; ++i) {
      to[i] = row.first + weights.Draw(bits(i));
      __builtin_prefetch(all.senders + to[i]);
    }
    return to + count;
  }
};

}  // namespace jaxgraph

#endif  // JAXGRAPH_DRAWS_H_
