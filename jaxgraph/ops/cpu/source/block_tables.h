// The tables of the edges of a sampled layer: the arrays of `jaxgraph.layout.block_tables`.

#ifndef JAXGRAPH_BLOCK_TABLES_H_
#define JAXGRAPH_BLOCK_TABLES_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

namespace jaxgraph {

// An array that grows without initializing what it holds.
template <class T>
class Room {
 public:
  // Makes room for a number of entries, and keeps the first ones.
  T* Reserve(int64_t size, int64_t kept = 0) {
    if (size > size_) {
      size_ = std::max(size, size_ + size_ / 2);
      std::unique_ptr<T[]> larger(new T[size_]);
      std::copy(data_.get(), data_.get() + kept, larger.get());
      data_ = std::move(larger);
    }
    return data_.get();
  }
  T* get() const { return data_.get(); }

 private:
  std::unique_ptr<T[]> data_;
  int64_t size_ = 0;
};

// The sizes of the arrays, and of XLA's loops over them: `BlockSizes` and its `visits()`.
struct BlockSizes {
  int64_t senders, receivers, edges;
  int64_t chunk, longest, runs;
};

// The arrays of one orientation, see `jaxgraph.ops.core.edges.Orientation`.
struct OrientationArrays {
  int32_t *neighbors, *compressed_ptr, *compressed_rows, *compressed_starts;
  int32_t *rows, *starts, *degrees, *run_ptr, *heavy_rows, *position;
};

inline void FillZeros(int32_t* array, int64_t begin, int64_t end) {
  std::fill(array + begin, array + end, 0);
}

// Writes all arrays but the neighbors, and pads them. `lengths` has the edges of each row; where it
// is not constant, it becomes the first slot of each.
class RowTables {
 public:
  template <class Lengths>
  void Write(Lengths* lengths, int64_t count, int64_t table_rows, const BlockSizes& sizes,
             const OrientationArrays& to) {
    const int32_t compact = Compress(lengths, count, to);
    const int64_t room = std::min(table_rows, sizes.edges);
    *to.compressed_ptr = 0;
    to.compressed_ptr[1] = compact;
    FillZeros(to.compressed_rows, compact, room);
    FillZeros(to.compressed_starts, compact + 1, room + 1);
    std::fill(to.position + count, to.position + table_rows, -1);
    OrderByLength(compact, to);
    const int64_t visited = CutHeavyRows(compact, sizes.longest, to);
    *to.run_ptr = 0;
    to.run_ptr[1] = int32_t(visited);
    for (int32_t* array : {to.rows, to.starts, to.degrees}) {
      FillZeros(array, visited, room + sizes.runs + sizes.chunk);
    }
  }

 private:
  // Lengths from the last on are sorted, smaller ones counted.
  static constexpr int32_t kCounted = 512;
  // Rows ahead at which memory is requested: there are too many streams for the hardware.
  static constexpr int64_t kRowsAhead = 64;

  // Finds the rows that have edges, and counts those of each length.
  template <class Lengths>
  int32_t Compress(Lengths* lengths, int64_t count, const OrientationArrays& to) {
    counts_.fill(0);
    int32_t compact = 0, slot = 0;
    for (int64_t row = 0; row < count; ++row) {
      const int32_t length = lengths[row];
      if constexpr (!std::is_const_v<Lengths>) lengths[row] = slot;
      if (length == 0) {
        to.position[row] = -1;
        continue;
      }
      to.compressed_rows[compact] = int32_t(row);
      to.compressed_starts[compact++] = slot;
      ++counts_[std::min(length, kCounted)];
      slot += length;
    }
    to.compressed_starts[compact] = slot;
    return compact;
  }

  // By descending length, then by row.
  void OrderByLength(int32_t compact, const OrientationArrays& to) {
    long_.clear();
    std::array<int32_t, kCounted + 1> next;
    int32_t before = 0;
    for (int32_t length = kCounted; length > 0; --length) {
      next[length] = before;
      std::fill(to.degrees + before, to.degrees + before + counts_[length], length);
      before += counts_[length];
    }
    const auto place = [&](int32_t at, int32_t from) {
      const int32_t row = to.compressed_rows[from], start = to.compressed_starts[from];
      to.rows[at] = row;
      to.starts[at] = start;
      to.position[row] = at;
    };
    for (int32_t i = 0; i < compact; ++i) {
      const int32_t length = to.compressed_starts[i + 1] - to.compressed_starts[i];
      if (length < kCounted) {
        const int32_t at = next[length]++;
        __builtin_prefetch(to.rows + at + kRowsAhead, 1);
        __builtin_prefetch(to.starts + at + kRowsAhead, 1);
        place(at, i);
      } else {
        long_.push_back(i);
      }
    }
    const auto length = [&](int32_t i) {
      return to.compressed_starts[i + 1] - to.compressed_starts[i];
    };
    std::stable_sort(long_.begin(), long_.end(),
                     [&](int32_t a, int32_t b) { return length(a) > length(b); });
    for (size_t at = 0; at < long_.size(); ++at) {
      place(int32_t(at), long_[at]);
      to.degrees[at] = length(long_[at]);
    }
  }

  // Heavy rows are the first ones; their runs follow the last row.
  static int64_t CutHeavyRows(int64_t visited, int64_t longest, const OrientationArrays& to) {
    const int64_t compact = visited;
    int64_t heavy = 0;
    for (; heavy < compact && to.degrees[heavy] > longest; ++heavy) {
      const int64_t first = visited, start = to.starts[heavy], length = to.degrees[heavy];
      for (int64_t done = 0; done < length; done += longest, ++visited) {
        to.rows[visited] = to.rows[heavy];
        to.starts[visited] = int32_t(start + done);
        to.degrees[visited] = int32_t(std::min(length - done, longest));
      }
      to.starts[heavy] = int32_t(first);
      to.degrees[heavy] = int32_t(visited - first);
    }
    *to.heavy_rows = int32_t(heavy);
    return visited;
  }

  std::array<int32_t, kCounted + 1> counts_;
  std::vector<int32_t> long_;
};

// Sorts edges by sender.
class SenderOrder {
 public:
  // Edges ahead at which memory is requested. `senders` has as many more, which are any rows.
  static constexpr int64_t kAhead = 16, kFarAhead = 64;

  // Counts the edges of each sender.
  int32_t* Count(const int32_t* senders, int64_t edges, int64_t num_senders) {
    int32_t* next = next_.Reserve(num_senders);
    FillZeros(next, 0, num_senders);
    for (int64_t edge = 0; edge < edges; ++edge) ++next[senders[edge]];
    return next;
  }

  // Appends each edge to those of its sender, whose first slots are where the counts were. A pair
  // takes one access to memory, the two arrays would take two.
  void Write(const int32_t* senders, int64_t edges, const int32_t* lengths, int64_t num_receivers,
             int32_t* receivers, int32_t* edge_ids) {
    int32_t* next = next_.get();
    int64_t* pairs = pairs_.Reserve(edges);
    int64_t edge = 0;
    for (int64_t row = 0; row < num_receivers; ++row) {
      for (const int64_t end = edge + lengths[row]; edge < end; ++edge) {
        __builtin_prefetch(next + senders[edge + kFarAhead], 1);
        __builtin_prefetch(pairs + next[senders[edge + kAhead]], 1);
        pairs[next[senders[edge]]++] = edge << 32 | row;
      }
    }
    for (int64_t slot = 0; slot < edges; ++slot) {
      receivers[slot] = int32_t(pairs[slot]);
      edge_ids[slot] = int32_t(pairs[slot] >> 32);
    }
  }

 private:
  Room<int32_t> next_;
  Room<int64_t> pairs_;
};

}  // namespace jaxgraph

#endif  // JAXGRAPH_BLOCK_TABLES_H_
