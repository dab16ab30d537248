// One group of edges in compressed rows, as in `jaxgraph.ops.core.edges.Orientation`.

#ifndef JAXGRAPH_EDGES_H_
#define JAXGRAPH_EDGES_H_

#include <cstdint>

namespace jaxgraph {

struct Edges {
  // Entries first <= c < last: the table row of entry c, and the index of its first edge.
  const int32_t* rows;
  const int32_t* starts;
  int32_t first;
  int32_t last;
  // By edge: the row at the other end, and the slot of its data (null: the edge's own index). There
  // may be padding after the last edge of the last row, up to num_slots.
  int64_t num_slots;
  const int32_t* neighbors;
  const int32_t* slots;
  // Rows of the table that is written.
  int64_t num_rows;

  int64_t Slot(int64_t edge) const { return slots == nullptr ? edge : slots[edge]; }
};

// Threads that share the pieces of one job. Any thread may run a piece, so a piece must not depend
// on it.
class Workers {
 public:
  virtual ~Workers() = default;
  // Calls task(data, piece) for every 0 <= piece < count, in any order, and returns when all are
  // done. The calling thread takes part.
  virtual void Run(int64_t count, void (*task)(void*, int64_t), void* data) = 0;
};

template <class Task>
void ForEachPiece(Workers& workers, int64_t count, Task task) {
  workers.Run(
      count, [](void* data, int64_t piece) { (*static_cast<Task*>(data))(piece); }, &task);
}

}  // namespace jaxgraph

#endif  // JAXGRAPH_EDGES_H_
