// A plain pool of threads instead of XLA's.

#ifndef JAXGRAPH_TESTS_SANITIZERS_THREAD_POOL_H_
#define JAXGRAPH_TESTS_SANITIZERS_THREAD_POOL_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <queue>
#include <thread>
#include <utility>
#include <vector>

#include "workers.h"

namespace jaxgraph {

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads) {
    for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { WorkUntilClosed(); });
  }

  // Finishes the queued tasks.
  ~ThreadPool() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void Schedule(std::function<void()> task) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      queue_.push(std::move(task));
    }
    changed_.notify_one();
  }

  int64_t num_threads() const { return static_cast<int64_t>(threads_.size()); }

 private:
  void WorkUntilClosed() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return closed_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const std::function<void()> task = std::move(queue_.front());
      queue_.pop();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::queue<std::function<void()>> queue_;
  bool closed_ = false;
  std::vector<std::thread> threads_;
};

inline auto WorkersOf(ThreadPool& pool) {
  return PoolWorkers(pool.num_threads(), [&pool](auto task) { pool.Schedule(std::move(task)); });
}

}  // namespace jaxgraph

#endif  // JAXGRAPH_TESTS_SANITIZERS_THREAD_POOL_H_
