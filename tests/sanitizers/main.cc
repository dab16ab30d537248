// Every kernel on random graphs, under sanitizers: on 1, 2 and 4 threads, where results must have
// the same bits, and in concurrent calls. `.ci/sanitize` builds and runs it. Sizes are arguments:
// 3x16 means 3 heads of 16 columns.

#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "calls.h"
#include "thread_pool.h"

namespace jaxgraph {
namespace {

struct Size {
  int64_t heads, width;
};

constexpr int32_t kNumNodes = 2500;
// Numbers that the edges of a hub gather: several pieces of work, see `schedule.h`.
constexpr int64_t kHubNumbers = 1 << 16;
constexpr int64_t kFewestHubEdges = 2000;
constexpr int64_t kMostHubEdges = 34000;

// Prints the names of different results; returns their number.
int CountDifferences(const Results& results, const Results& expected, const std::string& where) {
  int count = results.size() == expected.size() ? 0 : 1;
  for (const auto& [name, bytes] : expected) {
    const auto found = results.find(name);
    if (found != results.end() && found->second == bytes) continue;
    std::printf("%s: \"%s\" is not the same\n", where.c_str(), name.c_str());
    ++count;
  }
  return count;
}

template <class T>
int CheckThreadCounts(const Graph& graph, Size size, const std::string& name) {
  Calls<T> calls(graph, size.heads, size.width);
  Results expected;
  int failures = 0;
  for (const int num_threads : {1, 2, 4}) {
    ThreadPool pool(num_threads);
    auto workers = WorkersOf(pool);
    Results results = calls.All(workers, 0x30 + num_threads);
    if (num_threads == 1) {
      expected = std::move(results);
    } else {
      failures += CountDifferences(results, expected, name + std::to_string(num_threads));
    }
  }
  return failures;
}

int CheckSize(Size size, std::mt19937& random) {
  const int64_t hub_edges =
      std::clamp(kHubNumbers / (size.heads * size.width), kFewestHubEdges, kMostHubEdges);
  const Graph graph = MakeGraph(kNumNodes, hub_edges, 2 * kNumNodes, random);
  const std::string name = std::to_string(size.heads) + "x" + std::to_string(size.width);
  return CheckThreadCounts<float>(graph, size, "float " + name + ", threads: ") +
         CheckThreadCounts<double>(graph, size, "double " + name + ", threads: ") +
         CheckThreadCounts<BFloat16>(graph, size, "bfloat16 " + name + ", threads: ");
}

int CheckNoEdges(std::mt19937& random) {
  const Graph graph = MakeGraph(5, 0, 0, random);
  return CheckThreadCounts<float>(graph, {3, 7}, "no edges, threads: ");
}

// Concurrent calls on the pool's own threads, like those of the devices of a mesh.
int CheckCallsAtOnce(std::mt19937& random) {
  const Graph graph = MakeGraph(kNumNodes, kFewestHubEdges, 2 * kNumNodes, random);
  const int num_calls = 4;
  std::vector<Results> results(num_calls);
  {
    ThreadPool pool(2);
    for (Results& each : results) {
      pool.Schedule([&] {
        auto workers = WorkersOf(pool);
        each = Calls<float>(graph, 3, 16).All(workers, 0x30);
      });
    }
  }
  int failures = 0;
  for (const Results& each : results) {
    failures += CountDifferences(each, results.front(), "calls at once");
  }
  return failures;
}

}  // namespace
}  // namespace jaxgraph

int main(int num_arguments, char** arguments) {
  std::mt19937 random(1);
  int failures = jaxgraph::CheckNoEdges(random) + jaxgraph::CheckCallsAtOnce(random);
  for (int i = 1; i < num_arguments; ++i) {
    long heads = 0, width = 0;
    if (std::sscanf(arguments[i], "%ldx%ld", &heads, &width) != 2 || heads < 1 || width < 1) {
      std::printf("expected heads x columns such as 3x16, not %s\n", arguments[i]);
      return 2;
    }
    failures += jaxgraph::CheckSize({heads, width}, random);
  }
  std::printf(failures == 0 ? "all results are the same\n" : "%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
