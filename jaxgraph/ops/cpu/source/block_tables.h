// The compressed rows of the edges of a sampled layer.

#ifndef JAXGRAPH_BLOCK_TABLES_H_
#define JAXGRAPH_BLOCK_TABLES_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace jaxgraph {

// An array that grows, and does not initialize its entries.
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

// The entries of the arrays of a set of edges.
struct BlockSizes {
  int64_t senders, receivers, edges, slots;
};

// Compressed rows, see `jaxgraph.ops.core.edges.Orientation`.
struct CompressedRows {
  int32_t *neighbors, *ptr, *rows, *starts;
};

inline void FillZeros(int32_t* array, int64_t begin, int64_t end) {
  std::fill(array + begin, array + end, 0);
}

// Finds the rows that have edges, and pads. `lengths` has the edges of each row; where it is not
// constant, it becomes the first slot of each.
template <class Lengths>
void Compress(Lengths* lengths, int64_t count, int64_t room, const CompressedRows& to) {
  int32_t compact = 0, slot = 0;
  for (int64_t row = 0; row < count; ++row) {
    const int32_t length = lengths[row];
    if constexpr (!std::is_const_v<Lengths>) lengths[row] = slot;
    if (length == 0) continue;
    to.rows[compact] = int32_t(row);
    to.starts[compact++] = slot;
    slot += length;
  }
  to.ptr[0] = 0;
  to.ptr[1] = compact;
  FillZeros(to.rows, compact, room);
  // Rows of padding have no edges.
  std::fill(to.starts + compact, to.starts + room + 1, slot);
}

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
