// The pages of memory that results are written to.

#ifndef JAXGRAPH_PAGES_H_
#define JAXGRAPH_PAGES_H_

#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

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

// Asks for them under all of the memory around an address that the C library got in one piece.
// Linux tells where it begins and ends in a file that has to be read anew every time, which takes a
// tenth of a millisecond and more. Advice about a part of it has made mappings of its own of what
// lies before that part, in it and behind it; together they are memory without a gap.
inline void PreferLargePagesAround(const void* address) {
#if defined(MADV_HUGEPAGE)
  std::FILE* mappings = std::fopen("/proc/self/maps", "re");
  if (mappings == nullptr) return;
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  uintptr_t begin = 0, end = 0;
  // What is left of a line that is longer does not look like one.
  for (char line[256]; std::fgets(line, sizeof line, mappings) != nullptr;) {
    uintptr_t first = 0, last = 0;
    unsigned long inode = 0;
    char mode[5] = "";
    constexpr char kFormat[] = "%" SCNxPTR "-%" SCNxPTR " %4s %*x %*x:%*x %lu";
    if (std::sscanf(line, kFormat, &first, &last, mode, &inode) != 4) continue;
    const bool is_memory = std::strcmp(mode, "rw-p") == 0 && inode == 0;
    if (!is_memory || first != end) {
      if (begin <= wanted && wanted < end) break;
      begin = first;
    }
    end = is_memory ? last : begin;
  }
  std::fclose(mappings);
  if (begin <= wanted && wanted < end) {
    PreferLargePages(reinterpret_cast<void*>(begin), end - begin);
  }
#else
  (void)address;
#endif
}

}  // namespace jaxgraph

#endif  // JAXGRAPH_PAGES_H_
