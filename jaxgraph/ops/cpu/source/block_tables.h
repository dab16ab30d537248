// The tables of the edges of a sampled layer: the arrays of `jaxgraph.layout.block_tables`.

#ifndef JAXGRAPH_BLOCK_TABLES_H_
#define JAXGRAPH_BLOCK_TABLES_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

namespace jaxgraph {

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
  std::memset(array + begin, 0, (end - begin) * sizeof(int32_t));
}

// Writes all arrays but the neighbors, and pads them. `lengths` has the edges of each row; it
// becomes the first slot of each.
class RowTables {
 public:
  void Write(int32_t* lengths, int64_t count, int64_t table_rows, const BlockSizes& sizes,
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

  // Finds the rows that have edges, and counts those of each length.
  int32_t Compress(int32_t* lengths, int64_t count, const OrientationArrays& to) {
    counts_.fill(0);
    int32_t compact = 0, slot = 0;
    for (int64_t row = 0; row < count; ++row) {
      const int32_t length = lengths[row];
      lengths[row] = slot;
      to.position[row] = -1;
      if (length == 0) continue;
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
      before += counts_[length];
    }
    const auto place = [&](int32_t at, int32_t from) {
      const int32_t row = to.compressed_rows[from], start = to.compressed_starts[from];
      to.rows[at] = row;
      to.starts[at] = start;
      to.degrees[at] = to.compressed_starts[from + 1] - start;
      to.position[row] = at;
    };
    for (int32_t i = 0; i < compact; ++i) {
      const int32_t length = to.compressed_starts[i + 1] - to.compressed_starts[i];
      if (length < kCounted) {
        place(next[length]++, i);
      } else {
        long_.push_back(i);
      }
    }
    const auto length = [&](int32_t i) {
      return to.compressed_starts[i + 1] - to.compressed_starts[i];
    };
    std::stable_sort(long_.begin(), long_.end(),
                     [&](int32_t a, int32_t b) { return length(a) > length(b); });
    for (size_t at = 0; at < long_.size(); ++at) place(int32_t(at), long_[at]);
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

}  // namespace jaxgraph

#endif  // JAXGRAPH_BLOCK_TABLES_H_
