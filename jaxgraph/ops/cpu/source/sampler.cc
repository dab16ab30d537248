// Draws the neighbors of nodes, layer by layer, and writes the tables of their edges. A sampler is
// used by one thread at a time; several share the edges.

#include <cstdlib>
#include <limits>
#include <memory>
#include <new>

#include "block_tables.h"
#include "draws.h"

#define JAXGRAPH_EXPORT extern "C" __attribute__((visibility("default")))

namespace jaxgraph {
namespace {

// Receivers of a stage. Memory that a stage reads was requested by the one before.
constexpr int64_t kReceiversAtOnce = 32;
constexpr int64_t kEdgesAhead = 16;

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
  T* get() { return data_.get(); }

 private:
  std::unique_ptr<T[]> data_;
  int64_t size_ = 0;
};

// What was drawn for the receivers of a layer.
struct Layer {
  int64_t receivers = 0, senders = 0, edges = 0;
  Room<int32_t> lengths;       // edges of each receiver
  Room<int64_t> positions;     // of each edge among all edges
  Room<int32_t> neighbors;     // the row of each edge's sender
};

// The row of each node in the table of a batch. Rows of earlier batches are below the first.
class NodeTable {
 public:
  explicit NodeTable(int64_t num_nodes)
      : num_nodes_(num_nodes), rows_(new uint32_t[num_nodes]()), ids_(new int32_t[num_nodes + 1]) {}

  void Clear() {
    first_ += uint32_t(size_);
    if (first_ > std::numeric_limits<uint32_t>::max() - num_nodes_ - 1) {
      std::fill(rows_.get(), rows_.get() + num_nodes_, 0);
      first_ = 1;
    }
    size_ = 0;
  }

  void Prefetch(int32_t id) const { __builtin_prefetch(&rows_[id], 1); }

  // The row of a node, which is added where it is new.
  int32_t RowOf(int32_t id) {
    const uint32_t known = rows_[id] - first_;
    const bool is_new = known >= uint32_t(size_);
    const uint32_t row = is_new ? uint32_t(size_) : known;
    rows_[id] = first_ + row;
    ids_[size_] = id;
    size_ += is_new;
    return int32_t(row);
  }

  int64_t size() const { return size_; }
  const int32_t* ids() const { return ids_.get(); }

 private:
  int64_t num_nodes_, size_ = 0;
  uint32_t first_ = 1;
  std::unique_ptr<uint32_t[]> rows_;
  std::unique_ptr<int32_t[]> ids_;
};

enum Method : int64_t { kDistinct, kRepeated, kTogether };

class Sampler {
 public:
  Sampler(const NeighborsOfNodes& neighbors, const int64_t* fanouts, int64_t layers, Method method)
      : neighbors_(neighbors),
        fanouts_(fanouts, fanouts + layers),
        method_(method),
        table_(neighbors.num_nodes),
        layers_(layers) {}

  // Returns whether all seeds differ.
  bool Draw(const int32_t* seeds, int64_t num_seeds, uint64_t key) {
    table_.Clear();
    for (int64_t i = 0; i < num_seeds; ++i) table_.RowOf(seeds[i]);
    if (table_.size() != num_seeds) return false;
    for (int64_t i = int64_t(layers_.size()) - 1; i >= 0; --i) {
      const int64_t fanout =
          fanouts_[i] < 0 ? std::numeric_limits<int32_t>::max() : fanouts_[i];
      const uint64_t layer_key = LayerKey(key, i);
      switch (fanouts_[i] < 0 ? kDistinct : method_) {
        case kDistinct: DrawLayer(layers_[i], layer_key, fanout, distinct_); break;
        case kRepeated: DrawLayer(layers_[i], layer_key, fanout, DrawRepeated()); break;
        case kTogether: DrawLayer(layers_[i], layer_key, fanout, DrawTogether()); break;
      }
    }
    return true;
  }

  const std::vector<Layer>& layers() const { return layers_; }
  const NodeTable& table() const { return table_; }

  void Write(int64_t index, const BlockSizes& sizes, int32_t* const* arrays) {
    Layer& layer = layers_[index];
    OrientationArrays by_receiver, by_sender;
    std::memcpy(&by_receiver, arrays, sizeof(by_receiver));
    std::memcpy(&by_sender, arrays + 10, sizeof(by_sender));
    int32_t *const edge_ids = arrays[20], *const receivers = arrays[21], *const edges = arrays[22];
    const int64_t slots = sizes.edges + sizes.chunk;
    std::copy(layer.neighbors.get(), layer.neighbors.get() + layer.edges, by_receiver.neighbors);
    int32_t* lengths = lengths_.Reserve(std::max(layer.senders, int64_t{1}));
    std::copy(layer.lengths.get(), layer.lengths.get() + layer.receivers, lengths);
    int32_t* to = receivers;
    for (int64_t row = 0; row < layer.receivers; ++row) {
      for (int32_t* end = to + lengths[row]; to < end; ++to) *to = int32_t(row);
    }
    tables_.Write(lengths, layer.receivers, sizes.receivers, sizes, by_receiver);
    WriteBySender(layer, sizes, receivers, by_sender, edge_ids);
    for (int32_t* array : {by_receiver.neighbors, by_sender.neighbors, edge_ids, receivers}) {
      FillZeros(array, layer.edges, slots);
    }
    if (edges != nullptr) WriteEdges(layer, slots, edges);
  }

 private:
  template <class Drawing>
  void DrawLayer(Layer& layer, uint64_t key, int64_t fanout, Drawing&& draw) {
    layer.receivers = table_.size();
    layer.edges = 0;
    layer.lengths.Reserve(layer.receivers);
    // The first edge of the blocks that are in the stages after the first.
    int64_t found = 0, read = 0;
    for (int64_t begin = 0; found < layer.edges || begin < layer.receivers;
         begin += kReceiversAtOnce) {
      const int64_t end = std::min(begin + kReceiversAtOnce, layer.receivers);
      const int64_t drawn = layer.edges;
      if (begin < end) DrawBlock(layer, key, fanout, begin, end, draw);
      int32_t* neighbors = layer.neighbors.get();
      const int64_t* positions = layer.positions.get();
      for (int64_t edge = read; edge < drawn; ++edge) {
        neighbors[edge] = neighbors_.senders[positions[edge]];
        table_.Prefetch(neighbors[edge]);
      }
      for (int64_t edge = found; edge < read; ++edge) {
        neighbors[edge] = table_.RowOf(neighbors[edge]);
      }
      found = read;
      read = drawn;
    }
    layer.senders = table_.size();
  }

  // Draws for some receivers, and requests the senders of their edges.
  template <class Drawing>
  void DrawBlock(Layer& layer, uint64_t key, int64_t fanout, int64_t begin, int64_t end,
                 Drawing& draw) {
    const int32_t* ids = table_.ids();
    Row rows[kReceiversAtOnce];
    int64_t most = 0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t* pointers = neighbors_.pointers + ids[i];
      rows[i - begin] = {ids[i], pointers[0], pointers[1] - pointers[0], fanout};
      most += draw.Most(rows[i - begin]);
    }
    for (int64_t i = end; i < std::min(end + kReceiversAtOnce, layer.receivers); ++i) {
      __builtin_prefetch(neighbors_.pointers + ids[i]);
    }
    layer.neighbors.Reserve(layer.edges + most, layer.edges);
    int64_t* to = layer.positions.Reserve(layer.edges + most + 1, layer.edges) + layer.edges;
    for (int64_t i = begin; i < end; ++i) {
      int64_t* const after = draw(neighbors_, key, rows[i - begin], to);
      layer.lengths.get()[i] = int32_t(after - to);
      for (; to < after; ++to) __builtin_prefetch(neighbors_.senders + *to);
    }
    layer.edges = to - layer.positions.get();
  }

  // Counts the edges of each sender, and appends each edge to those of its sender.
  void WriteBySender(Layer& layer, const BlockSizes& sizes, const int32_t* receivers,
                     const OrientationArrays& to, int32_t* edge_ids) {
    const int32_t* neighbors = layer.neighbors.get();
    int32_t* next = lengths_.get();
    FillZeros(next, 0, layer.senders);
    for (int64_t edge = 0; edge < layer.edges; ++edge) ++next[neighbors[edge]];
    tables_.Write(next, layer.senders, sizes.senders, sizes, to);
    for (int64_t edge = 0; edge < layer.edges; ++edge) {
      const int32_t slot = next[neighbors[edge]]++;
      to.neighbors[slot] = receivers[edge];
      edge_ids[slot] = int32_t(edge);
    }
  }

  void WriteEdges(Layer& layer, int64_t slots, int32_t* edges) {
    const int64_t* positions = layer.positions.get();
    for (int64_t edge = 0; edge < layer.edges; ++edge) {
      __builtin_prefetch(neighbors_.edges + positions[std::min(edge + kEdgesAhead, layer.edges - 1)]);
      edges[edge] = neighbors_.edges[positions[edge]];
    }
    FillZeros(edges, layer.edges, slots);
  }

  NeighborsOfNodes neighbors_;
  std::vector<int64_t> fanouts_;
  Method method_;
  NodeTable table_;
  std::vector<Layer> layers_;
  DrawDistinct distinct_;
  Room<int32_t> lengths_;
  RowTables tables_;
};

// What an operation returns where it cannot be done.
enum Failure : int64_t { kRepeatedSeeds = -1, kNoMemory = -2 };

}  // namespace
}  // namespace jaxgraph

using jaxgraph::Sampler;

JAXGRAPH_EXPORT void* jaxgraph_sampler_new(const jaxgraph::NeighborsOfNodes* neighbors,
                                           const int64_t* fanouts, int64_t layers, int64_t method) {
  try {
    return new Sampler(*neighbors, fanouts, layers, jaxgraph::Method(method));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

JAXGRAPH_EXPORT void jaxgraph_sampler_delete(void* sampler) {
  delete static_cast<Sampler*>(sampler);
}

// Writes the receivers, senders and edges of each layer.
JAXGRAPH_EXPORT int64_t jaxgraph_sampler_draw(void* sampler, const int32_t* seeds,
                                              int64_t num_seeds, uint64_t key, int64_t* sizes) {
  auto* const each = static_cast<Sampler*>(sampler);
  try {
    if (!each->Draw(seeds, num_seeds, key)) return jaxgraph::kRepeatedSeeds;
  } catch (const std::bad_alloc&) {
    return jaxgraph::kNoMemory;
  }
  for (const jaxgraph::Layer& layer : each->layers()) {
    for (const int64_t size : {layer.receivers, layer.senders, layer.edges}) *sizes++ = size;
  }
  return 0;
}

JAXGRAPH_EXPORT int64_t jaxgraph_sampler_write(void* sampler, int64_t layer,
                                               const jaxgraph::BlockSizes* sizes,
                                               int32_t* const* arrays) {
  try {
    static_cast<Sampler*>(sampler)->Write(layer, *sizes, arrays);
  } catch (const std::bad_alloc&) {
    return jaxgraph::kNoMemory;
  }
  return 0;
}

JAXGRAPH_EXPORT void jaxgraph_sampler_ids(void* sampler, int32_t* ids, int64_t room) {
  const auto& table = static_cast<Sampler*>(sampler)->table();
  std::copy(table.ids(), table.ids() + table.size(), ids);
  jaxgraph::FillZeros(ids, table.size(), room);
}
