// Gathers rows of a table.

#ifndef JAXGRAPH_TAKE_ROWS_H_
#define JAXGRAPH_TAKE_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels.h"

namespace jaxgraph {

// y_i = x_j for j = rows_i.
struct TakeRowsArguments {
  const char* x;
  const int32_t* rows;  // [count]
  char* y;              // [count, row_bytes]
  int64_t count;
  int64_t row_bytes;
};

// Rows ahead at which rows are fetched, and the fewest bytes of a piece of work.
constexpr int64_t kRowsAhead = 8;
constexpr int64_t kFewestBytes = int64_t{1} << 16;
constexpr int64_t kMostTakePieces = 64;

inline void TakeRows(const TakeRowsArguments& a, Workers& workers) {
  const int64_t pieces =
      std::clamp<int64_t>(a.count * a.row_bytes / kFewestBytes, 1, kMostTakePieces);
  ForEachPiece(workers, pieces, [&](int64_t piece) {
    const int64_t end = (piece + 1) * a.count / pieces;
    for (int64_t i = piece * a.count / pieces; i < end; ++i) {
      const char* next = a.x + a.rows[std::min(i + kRowsAhead, a.count - 1)] * a.row_bytes;
      for (int64_t byte = 0; byte < a.row_bytes; byte += 64) __builtin_prefetch(next + byte);
      std::memcpy(a.y + i * a.row_bytes, a.x + a.rows[i] * a.row_bytes, a.row_bytes);
    }
  });
}

}  // namespace jaxgraph

#endif  // JAXGRAPH_TAKE_ROWS_H_
