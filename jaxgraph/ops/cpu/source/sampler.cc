// Draws the neighbors of nodes, layer by layer, and writes the tables of their edges. A sampler is
// used by one thread at a time; several share the edges.

#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "block_tables.h"
#include "draws.h"

#define JAXGRAPH_EXPORT extern "C" __attribute__((visibility("default")))

namespace jaxgraph {
namespace {

constexpr int64_t kReceiversAtOnce = 16;

// A set of edges, the sets of nodes that they leave and enter, and how they are drawn.
struct EdgeSet {
  NeighborsOfNodes neighbors;
  int64_t senders, receivers, method;
};

// What was drawn of a set of edges for the receivers of a layer.
struct Layer {
  int64_t receivers = 0, senders = 0, edges = 0;
  Room<int32_t> lengths;    // edges of each receiver
  Room<int32_t> neighbors;  // the row of each edge's sender
};

// The edges of some receivers. Memory that a stage reads was requested by the stage before.
struct Block {
  int64_t edges = 0;
  Room<int64_t> positions;  // of each edge among all edges
  Room<int32_t> nodes;      // each edge's sender
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

  // Finds the rows of nodes, and adds new ones in their order.
  void RowsOf(const int32_t* nodes, int64_t count, int32_t* rows) {
    int64_t unknown = 0;
    int32_t* places = unknown_.Reserve(count + 1);
    const uint32_t size = uint32_t(size_), first = first_;
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t row = rows_[nodes[i]] - first;
      places[unknown] = int32_t(i);
      unknown += row >= size;
      rows[i] = int32_t(row);
    }
    for (int64_t i = 0; i < unknown; ++i) {
      const int32_t node = nodes[places[i]];
      uint32_t row = rows_[node] - first;
      if (row >= uint32_t(size_)) {
        row = uint32_t(size_);
        rows_[node] = first + row;
        ids_[size_++] = node;
      }
      rows[places[i]] = int32_t(row);
    }
  }

  int64_t size() const { return size_; }
  const int32_t* ids() const { return ids_.get(); }

 private:
  int64_t num_nodes_, size_ = 0;
  uint32_t first_ = 1;
  std::unique_ptr<uint32_t[]> rows_;
  std::unique_ptr<int32_t[]> ids_;
  Room<int32_t> unknown_;
};

enum Method : int64_t { kDistinct, kRepeated, kTogether, kWeighted, kWeightedRepeated };

class Sampler {
 public:
  // Fanouts are layer by layer, for each set of edges.
  Sampler(const int64_t* nodes, int64_t num_sets, const EdgeSet* edges, int64_t num_edges,
          const int64_t* fanouts, int64_t layers)
      : edges_(edges, edges + num_edges),
        fanouts_(fanouts, fanouts + layers * num_edges),
        layers_(layers * num_edges) {
    for (int64_t i = 0; i < num_sets; ++i) tables_of_.emplace_back(nodes[i]);
  }

  // Returns whether all seeds differ. Writes the nodes of each set in the tables, the seeds' first.
  bool Draw(int64_t target, const int32_t* seeds, int64_t num_seeds, uint64_t key,
            int64_t* nodes) {
    for (NodeTable& table : tables_of_) table.Clear();
    NodeTable& of_seeds = tables_of_[target];
    of_seeds.RowsOf(seeds, num_seeds, lengths_.Reserve(num_seeds));
    if (of_seeds.size() != num_seeds) return false;
    key_ = key;
    nodes = WriteCounts(nodes);
    const int64_t sets = int64_t(edges_.size());
    for (int64_t first = int64_t(layers_.size()) - sets; first >= 0; first -= sets) {
      for (int64_t i = first; i < first + sets; ++i) {
        layers_[i].receivers = tables_of_[edges_[i - first].receivers].size();
      }
      for (int64_t i = first; i < first + sets; ++i) {
        WithDrawing(i, [&](uint64_t layer_key, int64_t fanout, auto& draw) {
          DrawLayer(layers_[i], SetOf(i), layer_key, fanout, draw);
        });
      }
      for (int64_t i = first; i < first + sets; ++i) {
        layers_[i].senders = tables_of_[edges_[i - first].senders].size();
      }
      nodes = WriteCounts(nodes);
    }
    return true;
  }

  const std::vector<Layer>& layers() const { return layers_; }
  const NodeTable& table(int64_t set) const { return tables_of_[set]; }

  void Write(int64_t index, const BlockSizes& sizes, int32_t* const* arrays) {
    Layer& layer = layers_[index];
    const CompressedRows by_receiver{arrays[0], arrays[1], arrays[2], arrays[3]};
    const CompressedRows by_sender{arrays[4], arrays[5], arrays[6], arrays[7]};
    int32_t *const edge_ids = arrays[8], *const edges = arrays[9];
    const int32_t *senders = layer.neighbors.get(), *lengths = layer.lengths.get();
    std::copy(senders, senders + layer.edges, by_receiver.neighbors);
    Compress(lengths, layer.receivers, std::min(sizes.receivers, sizes.edges), by_receiver);
    int32_t* sender_lengths = order_.Count(senders, layer.edges, layer.senders);
    Compress(sender_lengths, layer.senders, std::min(sizes.senders, sizes.edges), by_sender);
    order_.Write(senders, layer.edges, lengths, layer.receivers, by_sender.neighbors, edge_ids);
    for (int32_t* array : {by_receiver.neighbors, by_sender.neighbors, edge_ids}) {
      FillZeros(array, layer.edges, sizes.slots);
    }
    if (edges != nullptr) WriteEdges(index, sizes.slots, edges);
  }

 private:
  const EdgeSet& SetOf(int64_t index) const { return edges_[index % edges_.size()]; }

  int64_t* WriteCounts(int64_t* nodes) const {
    for (const NodeTable& table : tables_of_) *nodes++ = table.size();
    return nodes;
  }

  template <class Drawing>
  void DrawLayer(Layer& layer, const EdgeSet& set, uint64_t key, int64_t fanout, Drawing& draw) {
    NodeTable& senders = tables_of_[set.senders];
    layer.edges = 0;
    layer.lengths.Reserve(layer.receivers);
    const int64_t count = (layer.receivers + kReceiversAtOnce - 1) / kReceiversAtOnce;
    for (int64_t i = 0; i < count + 2; ++i) {
      if (i < count) DrawBlock(i * kReceiversAtOnce, layer, set, key, fanout, draw, blocks_[i % 3]);
      if (i >= 1 && i <= count) ReadSenders(set, blocks_[(i - 1) % 3]);
      if (i >= 2) {
        const Block& block = blocks_[(i - 2) % 3];
        int32_t* neighbors = layer.neighbors.Reserve(
            layer.edges + block.edges + SenderOrder::kFarAhead, layer.edges);
        senders.RowsOf(block.nodes.get(), block.edges, neighbors + layer.edges);
        layer.edges += block.edges;
      }
    }
    int32_t* neighbors = layer.neighbors.Reserve(SenderOrder::kFarAhead);
    FillZeros(neighbors, layer.edges, layer.edges + SenderOrder::kFarAhead);
  }

  template <class Drawing>
  void DrawBlock(int64_t begin, Layer& layer, const EdgeSet& set, uint64_t key, int64_t fanout,
                 Drawing& draw, Block& block) {
    const int64_t end = std::min(begin + kReceiversAtOnce, layer.receivers);
    const int32_t* ids = tables_of_[set.receivers].ids();
    const NeighborsOfNodes& all = set.neighbors;
    Row rows[kReceiversAtOnce];
    int64_t most = 0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t* pointers = all.pointers + ids[i];
      rows[i - begin] = {ids[i], pointers[0], pointers[1] - pointers[0], fanout};
      most += draw.Most(rows[i - begin]);
    }
    for (int64_t i = end; i < std::min(end + kReceiversAtOnce, layer.receivers); ++i) {
      __builtin_prefetch(all.pointers + ids[i]);
    }
    int64_t* to = block.positions.Reserve(most + 1);
    for (int64_t i = begin; i < end; ++i) {
      int64_t* const after = draw(all, key, rows[i - begin], to);
      layer.lengths.get()[i] = int32_t(after - to);
      to = after;
    }
    block.edges = to - block.positions.get();
  }

  void ReadSenders(const EdgeSet& set, Block& block) {
    const NodeTable& table = tables_of_[set.senders];
    const int64_t* positions = block.positions.get();
    int32_t* nodes = block.nodes.Reserve(block.edges);
    for (int64_t i = 0; i < block.edges; ++i) {
      nodes[i] = set.neighbors.senders[positions[i]];
      table.Prefetch(nodes[i]);
    }
  }

  // Draws again: positions are not stored, since few batches need the numbers of edges.
  void WriteEdges(int64_t index, int64_t slots, int32_t* edges) {
    Layer& layer = layers_[index];
    WithDrawing(index, [&](uint64_t key, int64_t fanout, auto& draw) {
      Block& block = blocks_[0];
      for (int64_t i = 0; i < layer.receivers; i += kReceiversAtOnce) {
        DrawBlock(i, layer, SetOf(index), key, fanout, draw, block);
        const int64_t* positions = block.positions.get();
        for (int64_t edge = 0; edge < block.edges; ++edge) {
          *edges++ = SetOf(index).neighbors.edges[positions[edge]];
        }
      }
    });
    FillZeros(edges, 0, slots - layer.edges);
  }

  // Calls `body` with what the draws of a layer depend on.
  template <class Body>
  void WithDrawing(int64_t index, Body body) {
    const EdgeSet& set = SetOf(index);
    const uint64_t key = LayerKey(key_, index / edges_.size(), index % edges_.size());
    const bool all = fanouts_[index] < 0;
    const int64_t fanout = all ? std::numeric_limits<int32_t>::max() : fanouts_[index];
    const Method of_all = set.neighbors.cumulative == nullptr ? kDistinct : kWeighted;
    switch (all ? of_all : Method(set.method)) {
      case kDistinct: return body(key, fanout, distinct_);
      case kRepeated: return body(key, fanout, repeated_);
      case kTogether: return body(key, fanout, together_);
      case kWeighted: return body(key, fanout, weighted_);
      case kWeightedRepeated: return body(key, fanout, weighted_repeated_);
    }
  }

  std::vector<EdgeSet> edges_;
  std::vector<int64_t> fanouts_;
  std::vector<NodeTable> tables_of_;
  std::vector<Layer> layers_;
  uint64_t key_ = 0;
  DrawDistinct distinct_;
  DrawRepeated repeated_;
  DrawTogether together_;
  DrawWeighted weighted_;
  DrawWeightedRepeated weighted_repeated_;
  Block blocks_[3];
  Room<int32_t> lengths_;
  SenderOrder order_;
};

// What an operation returns where it cannot be done.
enum Failure : int64_t { kRepeatedSeeds = -1, kNoMemory = -2 };

}  // namespace
}  // namespace jaxgraph

using jaxgraph::Sampler;

JAXGRAPH_EXPORT void* jaxgraph_sampler_new(const int64_t* nodes, int64_t num_sets,
                                           const jaxgraph::EdgeSet* edges, int64_t num_edges,
                                           const int64_t* fanouts, int64_t layers) {
  try {
    return new Sampler(nodes, num_sets, edges, num_edges, fanouts, layers);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

JAXGRAPH_EXPORT void jaxgraph_sampler_delete(void* sampler) {
  delete static_cast<Sampler*>(sampler);
}

// Writes the nodes of each table, the seeds' first, and the edges of each layer, the first first.
JAXGRAPH_EXPORT int64_t jaxgraph_sampler_draw(void* sampler, int64_t target, const int32_t* seeds,
                                              int64_t num_seeds, uint64_t key, int64_t* nodes,
                                              int64_t* edges) {
  auto* const each = static_cast<Sampler*>(sampler);
  try {
    if (!each->Draw(target, seeds, num_seeds, key, nodes)) return jaxgraph::kRepeatedSeeds;
  } catch (const std::bad_alloc&) {
    return jaxgraph::kNoMemory;
  }
  for (const jaxgraph::Layer& layer : each->layers()) *edges++ = layer.edges;
  return 0;
}

// Writes the arrays of a set of edges in a layer.
JAXGRAPH_EXPORT int64_t jaxgraph_sampler_write(void* sampler, int64_t index,
                                               const jaxgraph::BlockSizes* sizes,
                                               int32_t* const* arrays) {
  try {
    static_cast<Sampler*>(sampler)->Write(index, *sizes, arrays);
  } catch (const std::bad_alloc&) {
    return jaxgraph::kNoMemory;
  }
  return 0;
}

JAXGRAPH_EXPORT void jaxgraph_sampler_ids(void* sampler, int64_t set, int32_t* ids, int64_t room) {
  const auto& table = static_cast<Sampler*>(sampler)->table(set);
  std::copy(table.ids(), table.ids() + table.size(), ids);
  jaxgraph::FillZeros(ids, table.size(), room);
}
