// The sums, products and extrema as XLA custom calls.

#include "binding.h"

namespace jaxgraph {
namespace {

ffi::Error SumHandler(ffi::ThreadPool pool, Integers group, Integers pointers, Integers rows,
                      Integers starts, Integers neighbors, Integers slots, ffi::AnyBuffer x,
                      ffi::AnyBuffer weights, ffi::AnyBuffer missing, ffi::AnyBuffer before,
                      ffi::Result<ffi::AnyBuffer> y, int64_t heads) {
  const int64_t num_rows = y->dimensions().front();
  const int64_t width = Width(x);
  if (auto error = Check(heads > 0 && width % heads == 0, "columns are no multiple of the heads");
      error.failure()) {
    return error;
  }
  const Edges edges = Group(group, pointers, rows, starts, neighbors, slots, num_rows);
  PoolWorkers workers(pool);
  return WithType(x.element_type(), [&](auto zero) {
    using T = decltype(zero);
    KernelsFor<T>().sum({edges, static_cast<const T*>(x.untyped_data()),
                         DataOrNull<const T>(weights), DataOrNull<const bool>(missing),
                         static_cast<Accumulator<T>*>(y->untyped_data()),
                         before.element_count() > 0, heads, width / heads},
                        workers);
  });
}

ffi::Error ProductHandler(ffi::ThreadPool pool, Integers group, Integers pointers, Integers rows,
                          Integers starts, Integers neighbors, Integers slots, ffi::AnyBuffer x,
                          ffi::AnyBuffer z, ffi::AnyBuffer before, ffi::Result<ffi::AnyBuffer> y,
                          int64_t heads) {
  const int64_t width = Width(x);
  const Edges edges =
      Group(group, pointers, rows, starts, neighbors, slots, x.dimensions().front());
  PoolWorkers workers(pool);
  if (before.element_count() == 0) {
    // Slots without an edge.
    std::memset(y->untyped_data(), 0, y->size_bytes());
  }
  return WithType(x.element_type(), [&](auto zero) {
    using T = decltype(zero);
    KernelsFor<T>().product(
        {edges, static_cast<const T*>(x.untyped_data()), static_cast<const T*>(z.untyped_data()),
         static_cast<T*>(y->untyped_data()), heads, width / heads},
        workers);
  });
}

ffi::Error ExtremumHandler(ffi::ThreadPool pool, Integers group, Integers pointers, Integers rows,
                           Integers starts, Integers neighbors, Integers slots, ffi::AnyBuffer x,
                           Integers ids, Integers repetition, ffi::AnyBuffer missing,
                           ffi::AnyBuffer before, ffi::AnyBuffer, ffi::AnyBuffer,
                           ffi::Result<ffi::AnyBuffer> best, ffi::Result<ffi::AnyBuffer> count,
                           ffi::Result<ffi::Buffer<ffi::U32>> identity, bool maximum) {
  const int64_t num_rows = best->dimensions().front();
  const Edges edges = Group(group, pointers, rows, starts, neighbors, slots, num_rows);
  PoolWorkers workers(pool);
  return WithType(x.element_type(), [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulator<T>;
    KernelsFor<T>().extremum(
        {edges, static_cast<const T*>(x.untyped_data()), ids.typed_data(),
         DataOrNull<const int32_t>(repetition), DataOrNull<const bool>(missing),
         static_cast<A*>(best->untyped_data()), static_cast<A*>(count->untyped_data()),
         identity->typed_data(), before.element_count() > 0, maximum, Width(x)},
        workers);
  });
}

ffi::Error WinnerHandler(ffi::ThreadPool pool, Integers group, Integers pointers, Integers rows,
                         Integers starts, Integers neighbors, Integers slots, ffi::AnyBuffer x,
                         Integers ids, Integers repetition, ffi::AnyBuffer missing,
                         ffi::AnyBuffer y, ffi::AnyBuffer gradient, ffi::AnyBuffer several,
                         ffi::Buffer<ffi::U32> identity, ffi::AnyBuffer before,
                         ffi::Result<ffi::AnyBuffer> dx) {
  const int64_t num_rows = dx->dimensions().front();
  const Edges edges = Group(group, pointers, rows, starts, neighbors, slots, num_rows);
  PoolWorkers workers(pool);
  return WithType(x.element_type(), [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulator<T>;
    KernelsFor<T>().winner(
        {edges, static_cast<const T*>(x.untyped_data()), ids.typed_data(),
         DataOrNull<const int32_t>(repetition), DataOrNull<const bool>(missing),
         static_cast<const T*>(y.untyped_data()), static_cast<const A*>(gradient.untyped_data()),
         static_cast<const bool*>(several.untyped_data()), identity.typed_data(),
         static_cast<A*>(dx->untyped_data()), before.element_count() > 0, Width(x)},
        workers);
  });
}

}  // namespace
}  // namespace jaxgraph

JAXGRAPH_EXPORT const char* jaxgraph_level() { return jaxgraph::LevelName(); }

using AnyBuffer = xla::ffi::AnyBuffer;
using Integers = jaxgraph::Integers;

JAXGRAPH_HANDLER(jaxgraph_sum, jaxgraph::SumHandler,
                 jaxgraph::BindEdges()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Ret<AnyBuffer>()
                     .Attr<int64_t>("heads"))
JAXGRAPH_HANDLER(jaxgraph_product, jaxgraph::ProductHandler,
                 jaxgraph::BindEdges()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Ret<AnyBuffer>()
                     .Attr<int64_t>("heads"))
JAXGRAPH_HANDLER(jaxgraph_extremum, jaxgraph::ExtremumHandler,
                 jaxgraph::BindEdges()
                     .Arg<AnyBuffer>()
                     .Arg<Integers>()
                     .Arg<Integers>()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Ret<AnyBuffer>()
                     .Ret<AnyBuffer>()
                     .Ret<xla::ffi::Buffer<xla::ffi::U32>>()
                     .Attr<bool>("maximum"))
JAXGRAPH_HANDLER(jaxgraph_winner, jaxgraph::WinnerHandler,
                 jaxgraph::BindEdges()
                     .Arg<AnyBuffer>()
                     .Arg<Integers>()
                     .Arg<Integers>()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Arg<xla::ffi::Buffer<xla::ffi::U32>>()
                     .Arg<AnyBuffer>()
                     .Ret<AnyBuffer>())
