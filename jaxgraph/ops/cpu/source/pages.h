// The pages of memory that results are written to.

#ifndef JAXGRAPH_PAGES_H_
#define JAXGRAPH_PAGES_H_

#include <atomic>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace jaxgraph {

// Whether the owner of the process enabled large pages (`jaxgraph.process`): its memory keeps them
// when an array is freed.
inline std::atomic<bool> large_pages_wanted{false};

// Requests large pages for a large array, where they are enabled. XLA allocates large results anew
// in every call, and a sum over neighbors spends a fifth of its time on the first use of pages of 4
// KiB.
inline void PreferLargePages(void* data, size_t bytes) {
#if defined(MADV_HUGEPAGE)
  constexpr uintptr_t kPage = uintptr_t{1} << 21;
  constexpr size_t kWorthwhile = size_t{1} << 23;
  if (!large_pages_wanted || bytes < kWorthwhile) return;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + kPage - 1) / kPage * kPage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / kPage * kPage;
  // It is advice: if it is refused, nothing else changes.
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)data;
  (void)bytes;
#endif
}

// Requests them for the whole allocation around an address. Linux lists its bounds in a file that
// must be read anew every time.
inline void PreferLargePagesAround(const void* address) {
#if defined(MADV_HUGEPAGE)
  if (!large_pages_wanted) return;
  std::FILE* mappings = std::fopen("/proc/self/maps", "re");
  if (mappings == nullptr) return;
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  uintptr_t begin = 0, end = 0;
  // The rest of a longer line does not parse as two numbers.
  for (char line[256]; std::fgets(line, sizeof line, mappings) != nullptr;) {
    const bool is_mapping = std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &begin, &end) == 2;
    if (!is_mapping || wanted < begin || wanted >= end) continue;
    PreferLargePages(reinterpret_cast<void*>(begin), end - begin);
    break;
  }
  std::fclose(mappings);
#else
  (void)address;
#endif
}

}  // namespace jaxgraph

#endif  // JAXGRAPH_PAGES_H_
