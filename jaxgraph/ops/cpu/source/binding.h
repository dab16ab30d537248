// Code that the XLA custom calls share: threads, groups of edges, types.

#ifndef JAXGRAPH_BINDING_H_
#define JAXGRAPH_BINDING_H_

#include <cstring>
#include <string>
#include <utility>

#include "kernels.h"
#include "pages.h"
#include "workers.h"
#include "xla/ffi/api/ffi.h"

// Missing in XLA's headers: the binding of a parameter of this type.
template <>
struct xla::ffi::CtxBinding<xla::ffi::ThreadPool> {
  using Ctx = ThreadPool;
};

namespace jaxgraph {

namespace ffi = xla::ffi;

using Array = ffi::AnyBuffer;
using Integers = ffi::Buffer<ffi::S32>;
using Words = ffi::Buffer<ffi::U32>;
using Output = ffi::Result<Array>;

// The first arguments of calls that read edges: threads, and a group of edges.
struct Call {
  Workers& workers;
  Edges edges;

  // The edges, for writing a table of `num_rows` rows.
  Edges To(int64_t num_rows) const {
    Edges to = edges;
    to.num_rows = num_rows;
    return to;
  }
};

inline Edges BindGroup(Integers group, Integers pointers, Integers rows, Integers starts,
                       Integers neighbors, Integers slots) {
  const int32_t* pointer = pointers.typed_data() + group.typed_data()[0];
  return Edges{rows.typed_data(),
               starts.typed_data(),
               pointer[0],
               pointer[1],
               static_cast<int64_t>(neighbors.element_count()),
               neighbors.typed_data(),
               slots.element_count() == 0 ? nullptr : slots.typed_data(),
               /*num_rows=*/0};
}

template <class Argument>
void PrepareResult(const Argument&) {}

template <class Buffer>
void PrepareResult(ffi::Result<Buffer> result) {
  PreferLargePages(result->untyped_data(), result->size_bytes());
}

inline auto WorkersOf(ffi::ThreadPool pool) {
  return PoolWorkers(pool.num_threads(),
                     [pool](auto task) mutable { pool.Schedule(std::move(task)); });
}

// `handler` in XLA's form: the threads and the arrays of a group replace the call.
template <class... Rest>
auto Bind(ffi::Error (*handler)(const Call&, Rest...)) {
  return ffi::Ffi::BindTo([handler](ffi::ThreadPool pool, Integers group, Integers pointers,
                                    Integers rows, Integers starts, Integers neighbors,
                                    Integers slots, Rest... rest) {
    auto workers = WorkersOf(pool);
    const Edges edges = BindGroup(group, pointers, rows, starts, neighbors, slots);
    (PrepareResult(rest), ...);
    return handler(Call{workers, edges}, rest...);
  });
}

// The same for a handler that reads no edges.
template <class... Rest>
auto Bind(ffi::Error (*handler)(Workers&, Rest...)) {
  return ffi::Ffi::BindTo([handler](ffi::ThreadPool pool, Rest... rest) {
    auto workers = WorkersOf(pool);
    (PrepareResult(rest), ...);
    return handler(workers, rest...);
  });
}

// The same for a handler that writes nothing: it requests no pages for its results.
template <class... Arrays>
auto Bind(ffi::Error (*handler)(Arrays...)) {
  return ffi::Ffi::BindTo([handler](Arrays... arrays) { return handler(arrays...); });
}

// Callers ensure the shapes (`calls.py`). Only errors that would crash here are checked.
inline ffi::Error Check(bool holds, const char* what) {
  return holds ? ffi::Error::Success()
               : ffi::Error::InvalidArgument(std::string("jaxgraph: ") + what);
}

template <class T, class Buffer>
T* Data(const Buffer& buffer) {
  return static_cast<T*>(buffer.untyped_data());
}

// Whether an optional argument is given: a missing one is an empty array.
template <class Buffer>
bool IsGiven(const Buffer& buffer) {
  return buffer.element_count() > 0;
}

template <class T, class Buffer>
T* DataOrNull(const Buffer& buffer) {
  return IsGiven(buffer) ? Data<T>(buffer) : nullptr;
}

inline int64_t Width(const Array& array) {
  const int64_t rows = array.dimensions().front();
  return rows == 0 ? 0 : static_cast<int64_t>(array.element_count()) / rows;
}

// compute(T{}) for the type of the numbers that an array holds.
template <class Compute>
ffi::Error WithType(const Array& array, Compute compute) {
  switch (array.element_type()) {
    case ffi::F32: compute(float{}); return ffi::Error::Success();
    case ffi::F64: compute(double{}); return ffi::Error::Success();
    case ffi::BF16: compute(BFloat16{}); return ffi::Error::Success();
    default: return ffi::Error::InvalidArgument("jaxgraph: expected float32, float64 or bfloat16");
  }
}

}  // namespace jaxgraph

#define JAXGRAPH_EXPORT extern "C" __attribute__((visibility("default")))

#define JAXGRAPH_HANDLER(name, handler)                               \
  JAXGRAPH_EXPORT XLA_FFI_Error* name(XLA_FFI_CallFrame* call_frame) { \
    static const auto* bound = jaxgraph::Bind(handler).release();     \
    return bound->Call(call_frame);                                   \
  }

#endif  // JAXGRAPH_BINDING_H_
