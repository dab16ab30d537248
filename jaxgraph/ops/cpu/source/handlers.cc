// The sums, products, extrema and gradients of weights as XLA custom calls.

#include <algorithm>
#include <cstring>

#include "binding.h"
#include "take_rows.h"

namespace jaxgraph {
namespace {

constexpr char kHeads[] = "heads";
constexpr char kMaximum[] = "maximum";

ffi::Error CheckHeads(int64_t width, int64_t heads) {
  return Check(heads > 0 && width % heads == 0, "columns are no multiple of the heads");
}

ffi::Error SumHandler(const Call& call, Array x, Array weights, Array missing, Array before,
                      Output y, ffi::Attr<int64_t, kHeads> heads) {
  const int64_t width = Width(x);
  if (auto error = CheckHeads(width, *heads); error.failure()) return error;
  const Edges edges = call.To(y->dimensions().front());
  return WithType(x, [&](auto zero) {
    using T = decltype(zero);
    KernelsFor<T>().sum({edges, Data<const T>(x), DataOrNull<const T>(weights),
                         DataOrNull<const bool>(missing), Data<Accumulator<T>>(*y),
                         IsGiven(before), *heads, width / *heads},
                        call.workers);
  });
}

// Clears the slots of `y` without an edge of the group. By receiver, the slot of an edge is its
// index, so the slots of the group are consecutive and all written.
void ClearOtherSlots(const Edges& edges, const Array& y) {
  const bool all = edges.slots != nullptr || edges.first >= edges.last;
  const int64_t begin = all ? 0 : edges.starts[edges.first];
  const int64_t end = all ? 0 : edges.starts[edges.last];
  const int64_t bytes = static_cast<int64_t>(y.size_bytes());
  const int64_t slot_bytes = bytes / std::max<int64_t>(y.dimensions().front(), 1);
  std::memset(Data<char>(y), 0, begin * slot_bytes);
  std::memset(Data<char>(y) + end * slot_bytes, 0, bytes - end * slot_bytes);
}

ffi::Error ProductHandler(const Call& call, Array x, Array z, Array before, Output y,
                          ffi::Attr<int64_t, kHeads> heads) {
  const int64_t width = Width(x);
  if (auto error = CheckHeads(width, *heads); error.failure()) return error;
  const Edges edges = call.To(x.dimensions().front());
  if (!IsGiven(before)) ClearOtherSlots(edges, *y);
  return WithType(x, [&](auto zero) {
    using T = decltype(zero);
    KernelsFor<T>().product(
        {edges, Data<const T>(x), Data<const T>(z), Data<T>(*y), *heads, width / *heads},
        call.workers);
  });
}

ffi::Error ExtremumHandler(const Call& call, Array x, Array missing, Array before, Array,
                           Output best, Output count, ffi::Attr<bool, kMaximum> maximum) {
  const Edges edges = call.To(best->dimensions().front());
  return WithType(x, [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulator<T>;
    KernelsFor<T>().extremum(
        {edges, Data<const T>(x), DataOrNull<const bool>(missing), Data<A>(*best), Data<A>(*count),
         IsGiven(before), *maximum, Width(x)},
        call.workers);
  });
}

ffi::Error WinnerHandler(const Call& call, Array x, Array missing, Array y, Array gradient,
                         Array before, Output dx) {
  const Edges edges = call.To(dx->dimensions().front());
  return WithType(x, [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulator<T>;
    KernelsFor<T>().winner(
        {edges, Data<const T>(x), DataOrNull<const bool>(missing), Data<const T>(y),
         Data<const A>(gradient), Data<A>(*dx), IsGiven(before), Width(x)},
        call.workers);
  });
}

// `code`: the numbers of row instructions, instructions, registers, sums, dots and columns; the
// registers of the sums and of the dots; then the instructions.
ffi::Error ProgramHandler(const Call& call, Array rows, Array neighbors, Array per_edge,
                          Array parameters, Array constants, Integers code, Array before,
                          Array edges_before, Output y, Output of_edges) {
  const int32_t* const head = code.typed_data();
  constexpr int kHead = 6;
  const auto words = static_cast<int64_t>(code.element_count());
  if (words < kHead || words != kHead + head[3] + head[4] + 5 * int64_t{head[1]}) {
    return Check(false, "a program of another length");
  }
  if (head[2] > kMostRegisters || head[3] > kMostSums) {
    return Check(false, "a program with too many registers or sums");
  }
  const Edges edges = call.To(y->dimensions().front());
  if (head[4] > 0 && !IsGiven(edges_before)) ClearOtherSlots(edges, *of_edges);
  return WithType(constants, [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulator<T>;
    KernelsFor<T>().program(
        {edges, Data<const A>(rows), Width(rows), Data<const A>(neighbors), Width(neighbors),
         Data<const A>(per_edge), Width(per_edge), Data<const A>(parameters),
         Data<const A>(constants),
         reinterpret_cast<const Instruction*>(head + kHead + head[3] + head[4]), head[0], head[1],
         head[2], head + kHead, head[3], head + kHead + head[3], head[4], Data<A>(*y),
         Data<A>(*of_edges), IsGiven(before), head[5]},
        call.workers);
  });
}

template <class T>
SideBySide<T> Alone(const Array& table) {
  return {Data<T>(table), static_cast<int64_t>(table.dimensions()[1])};
}

// Two tables side by side; the second may be missing.
template <class T>
SideBySide<T> Beside(const Array& left, const Array& right) {
  if (right.dimensions().size() < 2) return Alone<T>(left);
  return {Data<T>(left), left.dimensions()[1], Data<T>(right), right.dimensions()[1]};
}

ffi::Error WeightGradientHandler(Workers& workers, Array x, Array gradient, Array beside,
                                 Output y) {
  const int64_t rows = x.dimensions().front();
  return WithType(x, [&](auto zero) {
    using T = decltype(zero);
    KernelsFor<T>().weight_gradient({Data<const T>(x), Beside<const T>(gradient, beside),
                                     Data<Accumulator<T>>(*y), rows, y->dimensions()[0]},
                                    workers);
  });
}

ffi::Error RowProductHandler(Workers& workers, Array x, Array x_beside, Array map, Output y) {
  return WithType(x, [&](auto zero) {
    using T = decltype(zero);
    KernelsFor<T>().row_product({Beside<const T>(x, x_beside), Data<const T>(map), Alone<T>(*y),
                                 x.dimensions().front()},
                                workers);
  });
}

ffi::Error RowProductsHandler(Workers& workers, Array x, Array map, Output y, Output y_beside) {
  return WithType(x, [&](auto zero) {
    using T = decltype(zero);
    KernelsFor<T>().row_product({Alone<const T>(x), Data<const T>(map), Beside<T>(*y, *y_beside),
                                 x.dimensions().front()},
                                workers);
  });
}

// XLA places all arrays of a program in one allocation. `place` is in it; nothing is written to it.
// x is returned unchanged: its readers run after this call.
ffi::Error LargePagesHandler(Array x, Output y, Output place) {
  PreferLargePagesAround(place->untyped_data());
  // XLA may have moved it.
  if (x.untyped_data() != y->untyped_data()) {
    std::memcpy(y->untyped_data(), x.untyped_data(), x.size_bytes());
  }
  return ffi::Error::Success();
}

ffi::Error TakeRowsHandler(Workers& workers, Array x, Integers rows, Output y) {
  const auto count = static_cast<int64_t>(rows.element_count());
  if (count == 0) return ffi::Error::Success();
  TakeRows({Data<const char>(x), rows.typed_data(), Data<char>(*y), count,
            static_cast<int64_t>(y->size_bytes()) / count},
           workers);
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jaxgraph

JAXGRAPH_EXPORT const char* jaxgraph_level() { return jaxgraph::LevelName(); }

JAXGRAPH_EXPORT void jaxgraph_want_large_pages() { jaxgraph::large_pages_wanted = true; }

JAXGRAPH_HANDLER(jaxgraph_sum, jaxgraph::SumHandler)
JAXGRAPH_HANDLER(jaxgraph_product, jaxgraph::ProductHandler)
JAXGRAPH_HANDLER(jaxgraph_extremum, jaxgraph::ExtremumHandler)
JAXGRAPH_HANDLER(jaxgraph_winner, jaxgraph::WinnerHandler)
JAXGRAPH_HANDLER(jaxgraph_program, jaxgraph::ProgramHandler)
JAXGRAPH_HANDLER(jaxgraph_weight_gradient, jaxgraph::WeightGradientHandler)
JAXGRAPH_HANDLER(jaxgraph_row_product, jaxgraph::RowProductHandler)
JAXGRAPH_HANDLER(jaxgraph_row_products, jaxgraph::RowProductsHandler)
JAXGRAPH_HANDLER(jaxgraph_large_pages, jaxgraph::LargePagesHandler)
JAXGRAPH_HANDLER(jaxgraph_take_rows, jaxgraph::TakeRowsHandler)
