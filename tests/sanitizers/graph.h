// Random edges in compressed rows, in both orientations, as in `jaxgraph.ops.core.edges`.

#ifndef JAXGRAPH_TESTS_SANITIZERS_GRAPH_H_
#define JAXGRAPH_TESTS_SANITIZERS_GRAPH_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

#include "edges.h"

namespace jaxgraph {

constexpr int kGroups = 2;

struct EdgeList {
  std::vector<int32_t> groups, senders, receivers;
};

struct Orientation {
  std::vector<int32_t> pointers, rows, starts, neighbors, slots;

  Edges Group(int group, int64_t num_rows) const {
    return {rows.data(),          starts.data(),
            pointers[group],      pointers[group + 1],
            int64_t(neighbors.size()), neighbors.data(),
            slots.empty() ? nullptr : slots.data(), num_rows};
  }
};

// Edges in the order of their groups and, within a group, of their rows.
inline std::vector<int32_t> RowOrder(const EdgeList& edges, const std::vector<int32_t>& rows) {
  std::vector<int32_t> order(rows.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return std::tie(edges.groups[a], rows[a]) < std::tie(edges.groups[b], rows[b]);
  });
  return order;
}

inline Orientation Orient(const EdgeList& edges, const std::vector<int32_t>& rows,
                          const std::vector<int32_t>& neighbors,
                          const std::vector<int32_t>& order) {
  Orientation to;
  to.pointers.assign(kGroups + 1, 0);
  for (size_t place = 0; place < order.size(); ++place) {
    const int32_t edge = order[place], group = edges.groups[edge];
    const bool is_new = place == 0 || rows[edge] != rows[order[place - 1]] ||
                        group != edges.groups[order[place - 1]];
    if (is_new) {
      to.rows.push_back(rows[edge]);
      to.starts.push_back(int32_t(place));
      ++to.pointers[group + 1];
    }
    to.neighbors.push_back(neighbors[edge]);
  }
  to.starts.push_back(int32_t(order.size()));
  // There is always a slot, unused without edges.
  if (order.empty()) to.neighbors.push_back(0);
  std::partial_sum(to.pointers.begin(), to.pointers.end(), to.pointers.begin());
  return to;
}

struct Graph {
  int64_t num_nodes;
  EdgeList edges;  // by slot
  Orientation by_receiver, by_sender;
  std::vector<int32_t> ids, repetition;
  std::unique_ptr<bool[]> missing;
};

// `hub_edges` enter one node and as many leave another; the last nodes have no edges at all.
inline EdgeList DrawEdges(int32_t num_nodes, int64_t hub_edges, int64_t other_edges,
                          std::mt19937& random) {
  std::uniform_int_distribution<int32_t> node(0, num_nodes - num_nodes / 8 - 1);
  EdgeList edges;
  for (int64_t edge = 0; edge < 2 * hub_edges + other_edges; ++edge) {
    edges.groups.push_back(random() % 8 == 0 ? 1 : 0);
    edges.receivers.push_back(edge < hub_edges ? 3 : node(random));
    edges.senders.push_back(edge >= hub_edges && edge < 2 * hub_edges ? 5 : node(random));
  }
  return edges;
}

inline Graph MakeGraph(int32_t num_nodes, int64_t hub_edges, int64_t other_edges,
                       std::mt19937& random) {
  const EdgeList drawn = DrawEdges(num_nodes, hub_edges, other_edges, random);
  Graph graph{num_nodes, {}, {}, {}, {}, {}, std::make_unique<bool[]>(num_nodes)};
  for (const int32_t edge : RowOrder(drawn, drawn.receivers)) {
    graph.edges.groups.push_back(drawn.groups[edge]);
    graph.edges.senders.push_back(drawn.senders[edge]);
    graph.edges.receivers.push_back(drawn.receivers[edge]);
  }
  const EdgeList& edges = graph.edges;
  std::vector<int32_t> slots(edges.groups.size());
  std::iota(slots.begin(), slots.end(), 0);
  graph.by_receiver = Orient(edges, edges.receivers, edges.senders, slots);
  const std::vector<int32_t> by_sender = RowOrder(edges, edges.senders);
  graph.by_sender = Orient(edges, edges.senders, edges.receivers, by_sender);
  graph.by_sender.slots = by_sender;
  for (const int32_t slot : slots) graph.repetition.push_back(slot % 3);
  for (int32_t node = 0; node < num_nodes; ++node) {
    graph.ids.push_back(10 * (num_nodes - node));
    graph.missing[node] = random() % 3 == 0;
  }
  return graph;
}

}  // namespace jaxgraph

#endif  // JAXGRAPH_TESTS_SANITIZERS_GRAPH_H_
