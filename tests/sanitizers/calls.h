// Calls of every kernel on random tables, with their results.

#ifndef JAXGRAPH_TESTS_SANITIZERS_CALLS_H_
#define JAXGRAPH_TESTS_SANITIZERS_CALLS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "graph.h"
#include "levels.h"
#include "take_rows.h"

namespace jaxgraph {

template <class T>
T Rounded(double value) {
  return static_cast<T>(value);
}
template <>
inline BFloat16 Rounded<BFloat16>(double value) {
  const float number = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &number, sizeof(bits));
  return {static_cast<uint16_t>(bits >> 16)};
}

// The results of the calls, by name.
using Results = std::map<std::string, std::vector<char>>;

template <class T>
class Calls {
 public:
  using A = Accumulator<T>;

  Calls(const Graph& graph, int64_t heads, int64_t width)
      : graph_(graph), heads_(heads), width_(width), slots_(int64_t(graph.edges.groups.size())) {
    std::mt19937 random(7);
    x_ = Draw<T>(graph.num_nodes * heads * width, random);
    z_ = Draw<T>(graph.num_nodes * heads * width, random);
    weights_ = Draw<T>(slots_ * heads, random);
    row_logits_ = Draw<A>(graph.num_nodes * heads, random);
    neighbor_logits_ = Draw<A>(graph.num_nodes * heads, random);
    attention_ = Draw<A>(heads * width, random);
    gradient_ = Draw<A>(graph.num_nodes * heads * width, random);
  }

  // `garbage`: the byte that fills results before a call. A number that a kernel does not write
  // differs between calls with different garbage.
  Results All(Workers& workers, int garbage) {
    results_.clear();
    workers_ = &workers;
    garbage_ = garbage;
    Sum(nullptr, "plain sum");
    Sum(weights_.data(), "weighted sum");
    Product();
    for (const bool maximum : {false, true}) Extremum(maximum);
    for (const auto kind : {Attention::kGat, Attention::kGatV2, Attention::kDot}) {
      for (const bool drops : {false, true}) Attend(kind, drops);
    }
    Program();
    WeightGradient();
    RowProduct();
    TakeRows();
    return std::move(results_);
  }

 private:
  template <class U>
  static std::vector<U> Draw(int64_t count, std::mt19937& random) {
    std::uniform_real_distribution<double> number(-1, 1);
    std::vector<U> numbers(count);
    for (U& each : numbers) each = Rounded<U>(number(random));
    return numbers;
  }

  template <class U>
  std::vector<U> Garbage(int64_t count) const {
    std::vector<U> numbers(count);
    if (count > 0) std::memset(numbers.data(), garbage_, count * sizeof(U));
    return numbers;
  }

  template <class U>
  void Keep(const std::string& name, const std::vector<U>& numbers) {
    const char* bytes = reinterpret_cast<const char*>(numbers.data());
    results_[name].assign(bytes, bytes + numbers.size() * sizeof(U));
  }

  int64_t NumNodes() const { return graph_.num_nodes; }
  int64_t TableSize() const { return NumNodes() * heads_ * width_; }
  const Kernels<T>& Level() const { return JAXGRAPH_LEVEL::LevelKernels<T>(); }
  Edges ByReceiver(int group) const { return graph_.by_receiver.Group(group, NumNodes()); }
  Edges BySender(int group) const { return graph_.by_sender.Group(group, NumNodes()); }

  // The first group; the others continue from it.
  const bool* Missing(int group) const { return group == 0 ? graph_.missing.get() : nullptr; }
  SelfMessages Self(int group) const {
    return {Missing(group), group == 0 ? NumNodes() : 0};
  }

  void Sum(const T* weights, const char* name) {
    auto y = Garbage<A>(TableSize());
    for (int group = 0; group < kGroups; ++group) {
      Level().sum({ByReceiver(group), x_.data(), weights, Missing(group), y.data(), group > 0,
                   heads_, width_},
                  *workers_);
    }
    Keep(name, y);
  }

  void Product() {
    auto y = Garbage<T>(slots_ * heads_);
    for (int group = 0; group < kGroups; ++group) {
      Level().product({ByReceiver(group), x_.data(), z_.data(), y.data(), heads_, width_},
                      *workers_);
    }
    Keep("product", y);
  }

  // Sums of sigmoid(g_i + g_j) tanh(2 e), and their totals by edge.
  void Program() {
    const auto line = [](Operation operation, int32_t to, int32_t a, int32_t b) {
      return Instruction{static_cast<int32_t>(operation), to, a, b, b};
    };
    const Instruction program[] = {
        line(Operation::kRow, 0, 0, 0),      line(Operation::kConstant, 1, 0, 0),
        line(Operation::kNeighbor, 2, 0, 0), line(Operation::kEdge, 3, 0, 0),
        line(Operation::kMul, 3, 3, 1),      line(Operation::kTanh, 3, 3, 3),
        line(Operation::kAdd, 2, 0, 2),      line(Operation::kLogistic, 2, 2, 2),
        line(Operation::kMul, 2, 2, 3)};
    const std::vector<A> per_edge(slots_, A{1} / 4);
    const A two = 2;
    const int32_t result = 2;
    const int64_t width = heads_ * width_;
    auto y = Garbage<A>(TableSize()), totals = Garbage<A>(slots_);
    for (int group = 0; group < kGroups; ++group) {
      Level().program({ByReceiver(group), gradient_.data(), width, gradient_.data(), width,
                       per_edge.data(), 1, nullptr, &two, program, 2, 9, 4, &result, 1, &result, 1,
                       y.data(), totals.data(), group > 0, width},
                      *workers_);
    }
    Keep("program", y);
    Keep("program: totals by edge", totals);
  }

  void WeightGradient() {
    const int64_t width = heads_ * width_;
    auto y = Garbage<A>(width * width);
    Level().weight_gradient({x_.data(), {z_.data(), width}, y.data(), NumNodes(), width},
                            *workers_);
    Keep("gradient of weights", y);
    auto both = Garbage<A>(width * (width + width_));
    Level().weight_gradient(
        {x_.data(), {z_.data(), width, x_.data(), width_}, both.data(), NumNodes(), width},
        *workers_);
    Keep("gradient of two tables of weights", both);
  }

  void RowProduct() {
    const int64_t width = heads_ * width_;
    // From two tables side by side to two others.
    auto rows = Garbage<T>(TableSize());
    auto narrower = Garbage<T>(NumNodes() * width_);
    auto map = z_;
    map.resize((width + width_) * (width + width_));
    Level().row_product({{x_.data(), width, z_.data(), width_},
                         map.data(),
                         {rows.data(), width, narrower.data(), width_},
                         NumNodes()},
                        *workers_);
    Keep("product of two tables", rows);
    Keep("second product of two tables", narrower);
    map.resize(width * width_);
    Level().row_product({{x_.data(), width}, map.data(), {narrower.data(), width_}, NumNodes()},
                        *workers_);
    Keep("product", narrower);
  }

  void TakeRows() {
    const auto row_bytes = static_cast<int64_t>(heads_ * width_ * sizeof(T));
    std::vector<int32_t> rows(slots_);
    for (int64_t i = 0; i < slots_; ++i) rows[i] = static_cast<int32_t>(i * 7 % NumNodes());
    auto y = Garbage<T>(slots_ * heads_ * width_);
    jaxgraph::TakeRows({reinterpret_cast<const char*>(x_.data()), rows.data(),
                        reinterpret_cast<char*>(y.data()), slots_, row_bytes},
                       *workers_);
    Keep("rows", y);
  }

  void Extremum(bool maximum) {
    const std::string name = maximum ? "maximum" : "minimum";
    const int64_t width = heads_ * width_;
    auto best = Garbage<A>(TableSize()), count = Garbage<A>(TableSize());
    for (int group = 0; group < kGroups; ++group) {
      Level().extremum(
          {ByReceiver(group), x_.data(), Missing(group), best.data(), count.data(), group > 0,
           maximum, width},
          *workers_);
    }
    Keep(name, best);
    Keep(name + ": count", count);
    std::vector<T> y(best.size());
    std::transform(best.begin(), best.end(), y.begin(), [](A each) { return Rounded<T>(each); });
    auto dx = Garbage<A>(TableSize());
    for (int group = 0; group < kGroups; ++group) {
      Level().winner({BySender(group), x_.data(), Missing(group), y.data(), gradient_.data(),
                      dx.data(), group > 0, width},
                     *workers_);
    }
    Keep(name + ": gradient", dx);
  }

  // The messages from `neighbors` to `rows`.
  LogitArguments<T> Logits(Attention kind, bool by_receiver) const {
    LogitArguments<T> logits{};
    logits.kind = kind;
    logits.parameter = 0.3;
    if (kind == Attention::kGat) {
      logits.row_logits = (by_receiver ? row_logits_ : neighbor_logits_).data();
      logits.neighbor_logits = (by_receiver ? neighbor_logits_ : row_logits_).data();
      logits.neighbor_stride = heads_;
    } else {
      logits.row = (by_receiver ? z_ : x_).data();
      logits.neighbor = (by_receiver ? x_ : z_).data();
    }
    if (kind == Attention::kGatV2) logits.attention = attention_.data();
    return logits;
  }

  void Attend(Attention kind, bool drops) {
    static const char* const names[] = {"GAT", "GATv2", "dot product"};
    static const uint32_t seed[] = {17, 4'000'000'001};
    const std::string name =
        names[static_cast<int>(kind)] + std::string(drops ? " with dropout: " : ": ");
    const Dropout dropout{drops ? seed : nullptr,   graph_.ids.data(), graph_.ids.data(),
                          graph_.repetition.data(), uint32_t{1} << 30, 4.0 / 3};
    auto peak = Garbage<A>(NumNodes() * heads_), total = Garbage<A>(NumNodes() * heads_);
    auto sums = Garbage<A>(TableSize());
    for (int group = 0; group < kGroups; ++group) {
      Level().attention({ByReceiver(group), Logits(kind, true), dropout, Self(group), x_.data(),
                         peak.data(), total.data(), sums.data(), group > 0, heads_, width_},
                        *workers_);
    }
    Keep(name + "peak", peak);
    Keep(name + "total", total);
    Keep(name + "sums", sums);
    AttendGradient(name, kind, dropout, peak, total);
  }

  // With dropout the receivers' gradient is divided here, and shared by the heads; otherwise it
  // counts as divided.
  void AttendGradient(const std::string& name, Attention kind, const Dropout& dropout,
                      const std::vector<A>& peak, const std::vector<A>& total) {
    const int64_t stride = 3 * heads_;
    std::vector<A> packed(NumNodes() * stride);
    for (int64_t i = 0; i < NumNodes() * heads_; ++i) {
      A* row = packed.data() + i / heads_ * stride + i % heads_;
      row[0] = std::isfinite(peak[i]) ? peak[i] : A{0};
      row[heads_] = row_logits_[i];
      row[2 * heads_] = total[i] > 0 ? 1 / total[i] : A{0};
    }
    const A* inverse = dropout.seed == nullptr ? nullptr : packed.data() + 2 * heads_;
    const bool is_dot = kind == Attention::kDot, is_shared = dropout.seed != nullptr;
    const std::vector<T> gradient(z_.begin(),
                                  z_.begin() + NumNodes() * (is_shared ? 1 : heads_) * width_);
    auto dvalues = Garbage<A>(TableSize());
    auto dsender = Garbage<A>(is_dot ? TableSize() : NumNodes() * heads_);
    auto per_edge = Garbage<A>(slots_ * heads_);
    std::vector<A> per_self(NumNodes() * heads_);
    for (int group = 0; group < kGroups; ++group) {
      Level().attention_gradient(
          {BySender(group), Logits(kind, false), dropout, Self(group), x_.data(), gradient.data(),
           is_shared, packed.data(), packed.data() + heads_, inverse, stride, dvalues.data(),
           kind == Attention::kGatV2 ? nullptr : dsender.data(), per_edge.data(), per_self.data(),
           group > 0, heads_, width_},
          *workers_);
    }
    Keep(name + "gradient of values", dvalues);
    if (kind != Attention::kGatV2) Keep(name + "gradient of senders", dsender);
    Keep(name + "per edge", per_edge);
    Keep(name + "per self", per_self);
    if (kind == Attention::kGatV2) HiddenGradient(name, per_edge, per_self);
    if (kind == Attention::kGat) EdgeSum(name, per_edge);
  }

  void HiddenGradient(const std::string& name, const std::vector<A>& per_edge,
                      const std::vector<A>& per_self) {
    auto drow = Garbage<A>(TableSize());
    std::vector<A> dattention(heads_ * width_);
    for (int group = 0; group < kGroups; ++group) {
      Level().hidden_gradient({ByReceiver(group), Logits(Attention::kGatV2, true), Self(group),
                               per_edge.data(), per_self.data(), drow.data(), group > 0,
                               dattention.data(), heads_, width_},
                              *workers_);
    }
    Keep(name + "gradient of receivers", drow);
    Keep(name + "gradient of the attention vector", dattention);
  }

  void EdgeSum(const std::string& name, const std::vector<A>& per_edge) {
    auto y = Garbage<A>(NumNodes() * heads_);
    for (int group = 0; group < kGroups; ++group) {
      Level().edge_sum({ByReceiver(group), per_edge.data(), y.data(), group > 0, heads_},
                       *workers_);
    }
    Keep(name + "gradient of receivers", y);
  }

  const Graph& graph_;
  const int64_t heads_, width_, slots_;
  std::vector<T> x_, z_, weights_;
  std::vector<A> row_logits_, neighbor_logits_, attention_, gradient_;
  Workers* workers_ = nullptr;
  int garbage_ = 0;
  Results results_;
};

}  // namespace jaxgraph

#endif  // JAXGRAPH_TESTS_SANITIZERS_CALLS_H_
