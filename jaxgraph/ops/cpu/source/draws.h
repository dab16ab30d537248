// How the neighbors of a node are drawn: `tests/oracles/sampling.py` has the same in NumPy, with the
// same numbers.

#ifndef JAXGRAPH_DRAWS_H_
#define JAXGRAPH_DRAWS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

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

// -log(1 - x), for odd multiples x of 2^-33 below 1. The operations are those of NumPy's version, and
// none is contracted: the results have the same bits.
inline double Exponential(double x) {
  const double u = 1 - x;
  uint64_t bits;
  std::memcpy(&bits, &u, sizeof(bits));
  int64_t exponent = int64_t(bits >> 52) - 1022;
  bits = (bits & (~uint64_t{0} >> 12)) | uint64_t{1022} << 52;
  double mantissa;
  std::memcpy(&mantissa, &bits, sizeof(bits));
  const bool is_small = mantissa < 0.70710678118654752;
  mantissa = is_small ? 2 * mantissa : mantissa;
  exponent -= is_small;
  const double s = (mantissa - 1) / (mantissa + 1), z = s * s;
  double sum = 0;
  for (int odd = 21; odd > 0; odd -= 2) sum = sum * z + 1.0 / odd;
  return -(double(exponent) * 0.69314718055994531 + 2 * s * sum);
}

// By weight without replacement (Efraimidis and Spirakis, 2006): an edge of weight w has the key
// -log(u) / w, and the smallest keys are taken.
class DrawWeighted {
 public:
  static int64_t Most(const Row& row) { return std::min(row.degree, row.fanout); }

  int64_t* operator()(const NeighborsOfNodes& all, uint64_t key, const Row& row, int64_t* to) {
    constexpr double kNone = std::numeric_limits<double>::infinity();
    const Bits bits(key, row.id);
    const float* const weights = all.weights + row.first;
    // About `bound` times the sum of the weights are below the bound; a higher one is rarely needed.
    const double fanout = double(row.fanout);
    double bound = row.degree <= row.fanout
                       ? kNone
                       : (fanout + 3 * std::sqrt(fanout) + 3) / Sum(weights, row.degree);
    double last = Find(weights, bits, row, bound);
    for (int tries = 0; last > bound; ++tries) {
      bound = tries < 2 ? 4 * bound : kNone;
      last = Find(weights, bits, row, bound);
    }
    // The first of equal keys is smaller.
    int64_t equal = row.fanout;
    for (size_t i = 0; i < count_; ++i) equal -= keys_[i] < last;
    for (size_t i = 0; i < count_; ++i) {
      if (keys_[i] > last || (keys_[i] == last && equal-- <= 0)) continue;
      *to = row.first + places_[i];
      __builtin_prefetch(all.senders + *to++);
    }
    return to;
  }

 private:
  static double Sum(const float* weights, int64_t count) {
    float sums[4] = {};
    for (int64_t i = 0; i + 3 < count; i += 4) {
      for (int64_t j = 0; j < 4; ++j) sums[j] += weights[i + j];
    }
    return double(sums[0]) + sums[1] + sums[2] + sums[3];
  }

  // Finds all edges with keys up to the bound, and some others. Returns the largest key to take;
  // infinity: there are fewer than are to be taken.
  double Find(const float* weights, const Bits& bits, const Row& row, double bound) {
    if (places_.size() < size_t(row.degree) + 2) {
      places_.resize(row.degree + 2);
      keys_.resize(row.degree + 2);
      order_.resize(row.degree + 2);
    }
    count_ = 0;
    const auto visit = [&](int64_t i, uint64_t half) {
      const double x = (double(half) + 0.5) / 4294967296.0;
      places_[count_] = i;
      keys_[count_] = x;
      // -log(1 - x) exceeds x by more than rounding errors.
      count_ += x < bound * double(weights[i]);
    };
    int64_t i = 0;
    for (; i + 1 < row.degree; i += 2) {
      const uint64_t pair = bits.Pair(i / 2);
      visit(i, uint32_t(pair));
      visit(i + 1, pair >> 32);
    }
    if (i < row.degree) visit(i, uint32_t(bits.Pair(i / 2)));
    for (size_t each = 0; each < count_; ++each) {
      keys_[each] = Exponential(keys_[each]) / double(weights[places_[each]]);
    }
    if (count_ < size_t(row.fanout) || row.fanout == 0) {
      return row.fanout == 0 ? 0 : std::numeric_limits<double>::infinity();
    }
    std::copy(keys_.begin(), keys_.begin() + count_, order_.begin());
    const auto last = order_.begin() + row.fanout - 1;
    std::nth_element(order_.begin(), last, order_.begin() + count_);
    return *last;
  }

  size_t count_ = 0;
  std::vector<int64_t> places_;
  std::vector<double> keys_, order_;
};

// By weight with replacement.
struct DrawWeightedRepeated {
  static int64_t Most(const Row& row) { return row.degree == 0 ? 0 : row.fanout; }

  int64_t* operator()(const NeighborsOfNodes& all, uint64_t key, const Row& row, int64_t* to) {
    const int64_t *const begin = all.cumulative + row.first, *const end = begin + row.degree;
    const uint64_t total = *end - *begin;
    if (total == 0) return to;
    const Bits bits(key, row.id);
    for (int64_t i = 0; i < row.fanout; ++i) {
      const uint64_t half = bits(i);
      const uint64_t below = half * (total >> 32) + (half * uint32_t(total) >> 32);
      to[i] = std::upper_bound(begin, end + 1, *begin + int64_t(below)) - 1 - all.cumulative;
      __builtin_prefetch(all.senders + to[i]);
    }
    return to + row.fanout;
  }
};

}  // namespace jaxgraph

#endif  // JAXGRAPH_DRAWS_H_
