// The sampler on a random graph, under sanitizers: samplers of several threads share the edges, and
// must draw the same. `.ci/sanitize` builds and runs it.

#include <cstdint>
#include <cstdio>
#include <random>
#include <thread>
#include <vector>

#include "block_tables.h"
#include "draws.h"

extern "C" {
struct EdgeSet {
  jaxgraph::NeighborsOfNodes neighbors;
  int64_t senders, receivers, method;
};
void* jaxgraph_sampler_new(const int64_t*, int64_t, const EdgeSet*, int64_t, const int64_t*, int64_t);
void jaxgraph_sampler_delete(void*);
int64_t jaxgraph_sampler_draw(void*, int64_t, const int32_t*, int64_t, uint64_t, int64_t*, int64_t*);
int64_t jaxgraph_sampler_write(void*, int64_t, const jaxgraph::BlockSizes*, int32_t* const*);
void jaxgraph_sampler_ids(void*, int64_t, int32_t*, int64_t);
}

namespace {

constexpr int64_t kNodes = 3000, kEdges = 40000, kSeeds = 100, kLayers = 2, kSpare = 5;

// Draws batches of a method with arrays of just the size that they need; returns all numbers.
std::vector<int32_t> Drawn(const EdgeSet& edges) {
  const int64_t fanouts[] = {-1, 7};
  void* sampler = jaxgraph_sampler_new(&kNodes, 1, &edges, 1, fanouts, kLayers);
  std::vector<int32_t> found;
  for (int64_t batch = 0; batch < 10; ++batch) {
    std::vector<int32_t> seeds(kSeeds);
    for (int64_t i = 0; i < kSeeds; ++i) seeds[i] = int32_t(batch * kSeeds + i);
    int64_t nodes[kLayers + 1], counts[kLayers];
    if (jaxgraph_sampler_draw(sampler, 0, seeds.data(), kSeeds, batch, nodes, counts) != 0) return {};
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const int64_t senders = nodes[kLayers - layer], receivers = nodes[kLayers - layer - 1];
      const int64_t most = counts[layer] + kSpare, slots = most + kSpare;
      const jaxgraph::BlockSizes sizes{senders, receivers, most, slots};
      const int64_t of_receivers = std::min(receivers, most), of_senders = std::min(senders, most);
      std::vector<std::vector<int32_t>> arrays;
      for (const int64_t size : {slots, int64_t{2}, of_receivers, of_receivers + 1, slots, int64_t{2},
                                 of_senders, of_senders + 1, slots, slots}) {
        arrays.emplace_back(size);
      }
      int32_t* pointers[10];
      for (int i = 0; i < 10; ++i) pointers[i] = arrays[i].data();
      jaxgraph_sampler_write(sampler, layer, &sizes, pointers);
      for (const auto& array : arrays) found.insert(found.end(), array.begin(), array.end());
    }
    std::vector<int32_t> ids(nodes[kLayers] + kSpare);
    jaxgraph_sampler_ids(sampler, 0, ids.data(), int64_t(ids.size()));
    found.insert(found.end(), ids.begin(), ids.end());
  }
  jaxgraph_sampler_delete(sampler);
  return found;
}

}  // namespace

int main() {
  std::mt19937 random(0);
  std::vector<int64_t> pointers(kNodes + 1), sums(kEdges + 1);
  std::vector<int32_t> senders(kEdges), numbers(kEdges);
  for (int64_t i = 0; i < kEdges; ++i) {
    // Low nodes are hubs, and some have no edges.
    const int64_t node = int64_t(random() % kNodes) * int64_t(random() % kNodes) / kNodes;
    ++pointers[node + 1];
    senders[i] = int32_t(random() % kNodes);
    numbers[i] = int32_t(i);
    sums[i + 1] = sums[i] + (random() % 3 == 0 ? 0 : int64_t(random() % (1u << 31)));
  }
  for (int64_t i = 0; i < kNodes; ++i) pointers[i + 1] += pointers[i];
  int failures = 0;
  for (int64_t method = 0; method < 5; ++method) {
    const int64_t* const weights = method < 3 ? nullptr : sums.data();
    const EdgeSet edges{{pointers.data(), senders.data(), numbers.data(), weights}, 0, 0, method};
    std::vector<int32_t> found[3];
    std::vector<std::thread> threads;
    for (auto& each : found) threads.emplace_back([&] { each = Drawn(edges); });
    for (std::thread& each : threads) each.join();
    for (const auto& each : found) failures += each.empty() || each != found[0];
  }
  std::printf("sampler: %d failures\n", failures);
  return failures != 0;
}
