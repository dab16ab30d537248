// What the XLA custom calls share: threads, groups of edges, types.

#ifndef JAXGRAPH_BINDING_H_
#define JAXGRAPH_BINDING_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>

#include "kernels.h"
#include "xla/ffi/api/ffi.h"

namespace jaxgraph {

namespace ffi = xla::ffi;

// Work on XLA's own threads. The calling thread takes pieces like any other and at the end waits
// only for pieces that another thread is working on, never for a task that stands in the queue: so
// calls that run at once cannot wait for each other, however few threads there are.
class PoolWorkers : public Workers {
 public:
  explicit PoolWorkers(ffi::ThreadPool pool) : pool_(pool) {}

  void Run(int64_t count, void (*task)(void*, int64_t), void* data) override {
    const int64_t helpers = std::min(count, pool_.num_threads()) - 1;
    if (helpers < 1) {
      for (int64_t piece = 0; piece < count; ++piece) task(data, piece);
      return;
    }
    // Outlives this call: a helper that starts late finds no piece left, and touches nothing else.
    const auto job = std::make_shared<Job>(count, task, data);
    for (int64_t i = 0; i < helpers; ++i) {
      pool_.Schedule([job] { job->Work(); });
    }
    job->Work();
    job->Wait();
  }

 private:
  struct Job {
    Job(int64_t count, void (*task)(void*, int64_t), void* data)
        : count(count), task(task), data(data) {}

    void Work() {
      int64_t finished = 0;
      for (int64_t piece; (piece = next.fetch_add(1)) < count; ++finished) task(data, piece);
      if (finished > 0 && done.fetch_add(finished) + finished == count) {
        const std::lock_guard<std::mutex> lock(mutex);
        all_done.notify_all();
      }
    }

    void Wait() {
      std::unique_lock<std::mutex> lock(mutex);
      all_done.wait(lock, [&] { return done.load() == count; });
    }

    const int64_t count;
    void (*const task)(void*, int64_t);
    void* const data;
    std::atomic<int64_t> next{0};
    std::atomic<int64_t> done{0};
    std::mutex mutex;
    std::condition_variable all_done;
  };

  ffi::ThreadPool pool_;
};

using Integers = ffi::Buffer<ffi::S32>;

// Shapes are the caller's to get right (`calls.py`); what is checked here is what an error there
// would turn into a crash.
inline ffi::Error Check(bool holds, const char* what) {
  return holds ? ffi::Error::Success()
               : ffi::Error::InvalidArgument(std::string("jaxgraph: ") + what);
}

// The data of an optional argument, which is an empty array where it is left out.
template <class T, class Buffer>
T* DataOrNull(const Buffer& buffer) {
  return buffer.element_count() == 0 ? nullptr : static_cast<T*>(buffer.untyped_data());
}

inline int64_t Width(const ffi::AnyBuffer& buffer) {
  const int64_t rows = buffer.dimensions().front();
  return rows == 0 ? 0 : static_cast<int64_t>(buffer.element_count()) / rows;
}

inline Edges Group(Integers group, Integers pointers, Integers rows, Integers starts,
                   Integers neighbors, Integers slots, int64_t num_rows) {
  const int32_t index = group.typed_data()[0];
  const int32_t* pointer = pointers.typed_data();
  return Edges{rows.typed_data(),
               starts.typed_data(),
               pointer[index],
               pointer[index + 1],
               static_cast<int64_t>(neighbors.element_count()),
               neighbors.typed_data(),
               slots.element_count() == 0 ? nullptr : slots.typed_data(),
               num_rows};
}

// call(T{}) for the type of the numbers that a buffer holds.
template <class Call>
ffi::Error WithType(ffi::DataType type, Call call) {
  switch (type) {
    case ffi::F32: call(float{}); return ffi::Error::Success();
    case ffi::F64: call(double{}); return ffi::Error::Success();
    case ffi::BF16: call(BFloat16{}); return ffi::Error::Success();
    default: return ffi::Error::InvalidArgument("jaxgraph: expected float32, float64 or bfloat16");
  }
}

// The arguments that every call starts with: the group, the compressed rows, the other ends.
inline auto BindEdges() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .Arg<Integers>()
      .Arg<Integers>()
      .Arg<Integers>()
      .Arg<Integers>()
      .Arg<Integers>()
      .Arg<Integers>();
}

}  // namespace jaxgraph

#define JAXGRAPH_EXPORT extern "C" __attribute__((visibility("default")))

#define JAXGRAPH_HANDLER(name, handler, binding)                      \
  JAXGRAPH_EXPORT XLA_FFI_Error* name(XLA_FFI_CallFrame* call_frame) { \
    static const auto* bound = (binding).To(handler).release();       \
    return bound->Call(call_frame);                                   \
  }

#endif  // JAXGRAPH_BINDING_H_
