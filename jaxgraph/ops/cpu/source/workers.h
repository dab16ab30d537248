// Work on the threads of a pool.

#ifndef JAXGRAPH_WORKERS_H_
#define JAXGRAPH_WORKERS_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "edges.h"

namespace jaxgraph {

// Tells the processor that the thread only waits.
inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

// Pieces of work that any number of threads share.
class Job {
 public:
  Job(int64_t count, void (*task)(void*, int64_t), void* data)
      : count_(count), task_(task), data_(data) {}

  // Works on pieces until none is left to take.
  void Work() {
    int64_t finished = 0;
    for (int64_t piece; (piece = next_.fetch_add(1)) < count_; ++finished) task_(data_, piece);
    if (finished > 0 && done_.fetch_add(finished) + finished == count_) {
      const std::lock_guard<std::mutex> lock(mutex_);
      all_done_.notify_all();
    }
  }

  // Waits for the pieces that other threads have taken. It stays awake for a moment: waking a
  // thread takes longer than the last piece of a small graph.
  void Wait() {
    for (int turn = 0; turn < kTurnsAwake; ++turn) {
      if (done_.load() == count_) return;
      Pause();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    all_done_.wait(lock, [&] { return done_.load() == count_; });
  }

 private:
  // Some 10 to 50 microseconds.
  static constexpr int kTurnsAwake = 1000;

  const int64_t count_;
  void (*const task_)(void*, int64_t);
  void* const data_;
  std::atomic<int64_t> next_{0};
  std::atomic<int64_t> done_{0};
  std::mutex mutex_;
  std::condition_variable all_done_;
};

// The calling thread and the threads of a pool, to which schedule(function) passes a function. The
// calling thread takes pieces like any other. At the end it waits only for pieces that another
// thread works on, never for a queued task: so concurrent calls cannot wait for each other, however
// few threads there are.
template <class Schedule>
class PoolWorkers : public Workers {
 public:
  PoolWorkers(int64_t num_threads, Schedule schedule)
      : num_threads_(num_threads), schedule_(std::move(schedule)) {}

  void Run(int64_t count, void (*task)(void*, int64_t), void* data) override {
    const int64_t helpers = std::min(count, num_threads_) - 1;
    if (helpers < 1) {
      for (int64_t piece = 0; piece < count; ++piece) task(data, piece);
      return;
    }
    // Outlives this call: a helper that starts late finds no piece left, and touches nothing else.
    const auto job = std::make_shared<Job>(count, task, data);
    for (int64_t i = 0; i < helpers; ++i) {
      schedule_([job] { job->Work(); });
    }
    job->Work();
    job->Wait();
  }

 private:
  const int64_t num_threads_;
  Schedule schedule_;
};

}  // namespace jaxgraph

#endif  // JAXGRAPH_WORKERS_H_
