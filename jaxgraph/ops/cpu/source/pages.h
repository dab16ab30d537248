// The pages of memory that results are written to.

#ifndef JAXGRAPH_PAGES_H_
#define JAXGRAPH_PAGES_H_

#include <cstddef>
#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace jaxgraph {

// Asks for large pages under a large array. XLA takes the memory of large results anew for every
// call, and a sum over neighbors spends a fifth of its time on the first use of pages of 4 KiB.
inline void PreferLargePages(void* data, size_t bytes) {
#if defined(MADV_HUGEPAGE)
  constexpr uintptr_t kPage = uintptr_t{1} << 21;
  constexpr size_t kWorthwhile = size_t{1} << 23;
  if (bytes < kWorthwhile) return;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + kPage - 1) / kPage * kPage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / kPage * kPage;
  // It is advice: where it is not taken nothing else changes.
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)data;
  (void)bytes;
#endif
}

}  // namespace jaxgraph

#endif  // JAXGRAPH_PAGES_H_
