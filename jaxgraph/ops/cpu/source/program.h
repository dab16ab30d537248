// Sums of messages that an element-wise program computes from both ends of an edge.

#ifndef JAXGRAPH_PROGRAM_H_
#define JAXGRAPH_PROGRAM_H_

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels.h"
#include "schedule.h"
#include "vectors.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

// Columns that one pass over the edges of a row computes.
constexpr int64_t kProgramColumns = 128;

template <class V, class A>
JAXGRAPH_INLINE V ByLane(const V& x, A (*function)(A)) {
  V y;
  for (unsigned lane = 0; lane < sizeof(V) / sizeof(A); ++lane) y[lane] = function(x[lane]);
  return y;
}

// e^x of any x: infinite above the largest exponent, NaN of NaN.
template <class A, int lanes>
JAXGRAPH_INLINE Vector<A, lanes> ExpOfAny(const Vector<A, lanes>& x) {
  using V = Vector<A, lanes>;
  const V most = All<A, lanes>(static_cast<A>(sizeof(A) == 4 ? 88.0 : 709.0));
  const V fits = x > most ? most : x;
  // e^x = e^most e^(x - most): the second factor carries results over to infinity.
  const V beyond = All<A, lanes>(std::numeric_limits<A>::infinity());
  const V last = Exp<lanes>(x > most ? x - most : V{});
  const V grown = Exp<lanes>(fits) * last;
  const V y = x > most + most ? beyond : grown;
  return x == x ? y : x;
}

// tanh x = x p(x^2) / q(x^2), error below 5 units in the last place (Eigen's coefficients).
template <int lanes>
JAXGRAPH_INLINE Vector<float, lanes> Tanh(const Vector<float, lanes>& x) {
  using F = Vector<float, lanes>;
  const F most = F{} + 7.90531110763549805f;
  const F above = x > most ? most : x;
  const F y = above < -most ? -most : above;
  const F s = y * y;
  F p = s * -2.76076847742355e-16f + 2.00018790482477e-13f;
  p = p * s + -8.60467152213735e-11f;
  p = p * s + 5.12229709037114e-08f;
  p = p * s + 1.48572235717979e-05f;
  p = p * s + 6.37261928875436e-04f;
  p = p * s + 4.89352455891786e-03f;
  F q = s * 1.19825839466702e-06f + 1.18534705686654e-04f;
  q = q * s + 2.26843463243900e-03f;
  q = q * s + 4.89352518554385e-03f;
  const F found = y * p / q;
  return x == x ? found : x;
}

template <int lanes>
JAXGRAPH_INLINE Vector<double, lanes> Tanh(const Vector<double, lanes>& x) {
  return ByLane<Vector<double, lanes>, double>(x, std::tanh);
}

// The registers of a program, a block of columns each.
template <class A>
struct Registers {
  static constexpr int lanes = kLanes<A>;
  static constexpr int vectors = kProgramColumns / lanes;
  using V = Vector<A, lanes>;
  V values[kMostRegisters][vectors];

  A* Of(int32_t number) { return reinterpret_cast<A*>(values[number]); }
};

template <class A>
struct ProgramOp {
  using R = Registers<A>;
  using V = typename R::V;
  const ProgramArguments<A>& a;

  int64_t StateSize() const { return a.num_sums * a.width; }

  void Fill(int64_t row, int64_t) const { std::fill_n(a.y + row * StateSize(), StateSize(), A{0}); }

  template <class Function>
  JAXGRAPH_INLINE void Each(R& r, const Instruction& i, int vectors, Function function) const {
    V* const to = r.values[i.to];
    const V* const left = r.values[i.a];
    const V* const right = r.values[i.b];
    for (int v = 0; v < vectors; ++v) to[v] = function(left[v], right[v]);
  }

  // Runs some instructions. `column` is the first of the block.
  void Run(R& r, const Instruction* begin, const Instruction* end, int64_t row, int64_t neighbor,
           int64_t slot, int64_t column, int64_t count) const {
    const int vectors = static_cast<int>((count + R::lanes - 1) / R::lanes);
    const auto copy = [&](const Instruction& i, const A* from) {
      std::memcpy(r.Of(i.to), from + i.a + column, count * sizeof(A));
    };
    const auto fill = [&](const Instruction& i, A value) {
      for (int v = 0; v < vectors; ++v) r.values[i.to][v] = All<A, R::lanes>(value);
    };
    const auto truth = [](const auto& mask) JAXGRAPH_LAMBDA {
      return mask ? All<A, R::lanes>(1) : V{};
    };
    for (const Instruction* next = begin; next != end; ++next) {
      const Instruction i = *next;
      switch (static_cast<Operation>(i.operation)) {
        case Operation::kRow: copy(i, a.rows + row * a.row_stride); break;
        case Operation::kNeighbor: copy(i, a.neighbors + neighbor * a.neighbor_stride); break;
        case Operation::kParameter: copy(i, a.parameters); break;
        case Operation::kEdge: fill(i, a.per_edge[slot * a.edge_stride + i.a]); break;
        case Operation::kConstant: fill(i, a.constants[i.a]); break;
        case Operation::kAdd:
          Each(r, i, vectors, [](V x, V y) JAXGRAPH_LAMBDA { return x + y; });
          break;
        case Operation::kSub:
          Each(r, i, vectors, [](V x, V y) JAXGRAPH_LAMBDA { return x - y; });
          break;
        case Operation::kMul:
          Each(r, i, vectors, [](V x, V y) JAXGRAPH_LAMBDA { return x * y; });
          break;
        case Operation::kDiv:
          Each(r, i, vectors, [](V x, V y) JAXGRAPH_LAMBDA { return x / y; });
          break;
        case Operation::kMax:  // NaN of either wins
          Each(r, i, vectors,
               [](V x, V y) JAXGRAPH_LAMBDA { return x != x ? x : (x > y ? x : y); });
          break;
        case Operation::kMin:
          Each(r, i, vectors,
               [](V x, V y) JAXGRAPH_LAMBDA { return x != x ? x : (x < y ? x : y); });
          break;
        case Operation::kNeg:
          Each(r, i, vectors, [](V x, V) JAXGRAPH_LAMBDA { return -x; });
          break;
        case Operation::kAbs:
          Each(r, i, vectors, [](V x, V) JAXGRAPH_LAMBDA { return x < V{} ? -x : x; });
          break;
        case Operation::kSign:
          Each(r, i, vectors, [&](V x, V) JAXGRAPH_LAMBDA {
            return x == x ? truth(x > V{}) - truth(x < V{}) : x;
          });
          break;
        case Operation::kExp:
          Each(r, i, vectors, [](V x, V) JAXGRAPH_LAMBDA { return ExpOfAny<A, R::lanes>(x); });
          break;
        case Operation::kLog:
          Each(r, i, vectors, [](V x, V) { return ByLane<V, A>(x, std::log); });
          break;
        case Operation::kTanh:
          Each(r, i, vectors, [](V x, V) JAXGRAPH_LAMBDA { return Tanh<R::lanes>(x); });
          break;
        case Operation::kLogistic:
          Each(r, i, vectors, [](V x, V) JAXGRAPH_LAMBDA {
            const V one = All<A, R::lanes>(1);
            return one / (one + ExpOfAny<A, R::lanes>(-x));
          });
          break;
        case Operation::kSqrt:
          Each(r, i, vectors, [](V x, V) { return ByLane<V, A>(x, std::sqrt); });
          break;
        case Operation::kGt:
          Each(r, i, vectors, [&](V x, V y) JAXGRAPH_LAMBDA { return truth(x > y); });
          break;
        case Operation::kGe:
          Each(r, i, vectors, [&](V x, V y) JAXGRAPH_LAMBDA { return truth(x >= y); });
          break;
        case Operation::kLt:
          Each(r, i, vectors, [&](V x, V y) JAXGRAPH_LAMBDA { return truth(x < y); });
          break;
        case Operation::kLe:
          Each(r, i, vectors, [&](V x, V y) JAXGRAPH_LAMBDA { return truth(x <= y); });
          break;
        case Operation::kEq:
          Each(r, i, vectors, [&](V x, V y) JAXGRAPH_LAMBDA { return truth(x == y); });
          break;
        case Operation::kNe:
          Each(r, i, vectors, [&](V x, V y) JAXGRAPH_LAMBDA { return truth(x != y); });
          break;
        case Operation::kSelect: {  // a ? c : b
          const V* const when = r.values[i.a];
          const V* const no = r.values[i.b];
          const V* const yes = r.values[i.c];
          for (int v = 0; v < vectors; ++v) {
            r.values[i.to][v] = when[v] != V{} ? yes[v] : no[v];
          }
          break;
        }
      }
    }
  }

  void Reduce(int64_t row, int64_t begin, int64_t end, const A* before, A* y) const {
    R r;
    const Instruction* const program = a.program;
    const Instruction* const body = program + a.num_of_row;
    const Instruction* const last = program + a.num_instructions;
    for (int64_t column = 0; column < a.width; column += kProgramColumns) {
      const int64_t count = std::min(kProgramColumns, a.width - column);
      const int vectors = static_cast<int>((count + R::lanes - 1) / R::lanes);
      // What lies beyond the last column is computed too, and not stored.
      for (int32_t i = 0; i < a.num_registers; ++i) {
        r.values[i][vectors - 1] = V{};
      }
      V totals[kMostSums][R::vectors];
      for (int32_t sum = 0; sum < a.num_sums; ++sum) {
        std::fill_n(totals[sum], vectors, V{});
        if (before != nullptr) {
          std::memcpy(totals[sum], before + sum * a.width + column, count * sizeof(A));
        }
      }
      Run(r, program, body, row, 0, 0, column, count);
      for (int64_t edge = begin; edge < end; ++edge) {
        const int64_t slot = a.edges.Slot(edge);
        Run(r, body, last, row, a.edges.neighbors[edge], slot, column, count);
        for (int32_t sum = 0; sum < a.num_sums; ++sum) {
          const V* const from = r.values[a.sums[sum]];
          for (int v = 0; v < vectors; ++v) totals[sum][v] += from[v];
        }
        for (int32_t dot = 0; dot < a.num_dots; ++dot) {
          const A* const from = r.Of(a.dots[dot]);
          A* const to = a.of_edges + slot * a.num_dots + dot;
          A total = column == 0 ? A{0} : *to;
          for (int64_t i = 0; i < count; ++i) total += from[i];
          *to = total;
        }
      }
      for (int32_t sum = 0; sum < a.num_sums; ++sum) {
        std::memcpy(y + sum * a.width + column, totals[sum], count * sizeof(A));
      }
    }
  }

  void Row(int64_t row, const Span& span) const {
    A* const y = a.y + row * StateSize();
    Reduce(row, span.begin, span.end, a.resume ? y : nullptr, y);
  }

  void Part(int64_t row, const Span& span, A* state) const {
    Reduce(row, span.begin, span.end, nullptr, state);
  }

  void Join(int64_t row, int64_t piece, const Parts<A>& parts) const {
    if (!a.resume) Fill(row, piece);
    for (int64_t part = 0; part < parts.count; ++part) {
      AddRow<A>(a.y + row * StateSize(), parts[part], StateSize());
    }
  }
};

template <class A>
void RunProgram(const ProgramArguments<A>& a, Workers& workers) {
  const ProgramOp<A> op{a};
  ReduceRows<A>(Cuts(a.edges, !a.resume, std::max(a.row_stride, a.neighbor_stride)), workers, op);
}

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_PROGRAM_H_
