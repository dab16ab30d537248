// Rows whose columns are reduced independently of each other, a few vectors of columns at a time.

#ifndef JAXGRAPH_COLUMN_ROWS_H_
#define JAXGRAPH_COLUMN_ROWS_H_

#include "columns.h"
#include "kernels.h"
#include "schedule.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

// Reduces rows of columns, for ReduceRows. An op works on a vector of columns, at an offset.
//
//   op.StateSize()                  numbers of a partial result
//   op.Own(row, offset)             what all edges of a row read
//   op.Place(edge)                  where an edge is read
//   op.Before(row, offset)          the state of a row before its edges
//   op.Nothing()                    the state of no edges
//   op.Add(state, own, place, offset)
//   op.Merge(state, other)
//   op.Write(row, offset, state)    the result of a row
//   op.Save(to, offset, state)      a partial result, and op.Saved(from, offset)
template <class A, int most, class Op>
struct ColumnRows {
  const Op op;
  const Columns& columns;

  int64_t StateSize() const { return op.StateSize(); }

  void Fill(int64_t row, int64_t) const {
    for (const Run& run : columns.runs) {
      for (int v = 0; v < run.count; ++v) {
        op.Write(row, run.offset[v], op.Before(row, run.offset[v]));
      }
    }
  }

  // The states of a run of columns; all are read before any is written.
  template <class Start, class Finish>
  void Reduce(int64_t row, const Span& span, Start start, Finish finish) const {
    for (const Run& run : columns.runs) {
      WithCount<most>(run.count, [&](auto constant) JAXGRAPH_LAMBDA {
        constexpr int count = decltype(constant)::kValue;
        typename Op::State states[count];
        decltype(op.Own(0, 0)) own[count];
        JAXGRAPH_UNROLL
        for (int v = 0; v < count; ++v) {
          states[v] = start(run.offset[v]);
          own[v] = op.Own(row, run.offset[v]);
        }
        for (int64_t edge = span.begin; edge < span.end; ++edge) {
          const int64_t place = op.Place(edge);
          JAXGRAPH_UNROLL
          for (int v = 0; v < count; ++v) op.Add(states[v], own[v], place, run.offset[v]);
        }
        JAXGRAPH_UNROLL
        for (int v = 0; v < count; ++v) finish(run.offset[v], states[v]);
      });
    }
  }

  void Row(int64_t row, const Span& span) const {
    Reduce(
        row, span, [&](int64_t offset) JAXGRAPH_LAMBDA { return op.Before(row, offset); },
        [&](int64_t offset, const auto& state) JAXGRAPH_LAMBDA { op.Write(row, offset, state); });
  }

  void Part(int64_t row, const Span& span, A* to) const {
    Reduce(
        row, span, [&](int64_t) JAXGRAPH_LAMBDA { return op.Nothing(); },
        [&](int64_t offset, const auto& state) JAXGRAPH_LAMBDA { op.Save(to, offset, state); });
  }

  void Join(int64_t row, int64_t, const Parts<A>& parts) const {
    for (const Run& run : columns.runs) {
      typename Op::State joined[most];
      for (int v = 0; v < run.count; ++v) {
        joined[v] = op.Before(row, run.offset[v]);
        for (int64_t part = 0; part < parts.count; ++part) {
          op.Merge(joined[v], op.Saved(parts[part], run.offset[v]));
        }
      }
      for (int v = 0; v < run.count; ++v) op.Write(row, run.offset[v], joined[v]);
    }
  }
};

// The states of an op that adds vectors.
template <class A, int lanes>
struct VectorSums {
  using State = Vector<A, lanes>;

  JAXGRAPH_INLINE static State Nothing() { return State{}; }
  JAXGRAPH_INLINE static void Merge(State& state, const State& other) { state += other; }
  JAXGRAPH_INLINE static void Save(A* to, int64_t offset, const State& state) {
    Store<A, lanes>(to + offset, state);
  }
  JAXGRAPH_INLINE static State Saved(const A* from, int64_t offset) {
    return Load<A, lanes>(from + offset);
  }
};

// Reduces `width` columns by Op<T, lanes>, `most` vectors at a time.
template <class T, int most, template <class, int> class Op, class Arguments>
void ReduceColumns(const Arguments& a, int64_t width, int64_t numbers_per_edge, Workers& workers) {
  using A = Accumulator<T>;
  if (width == 0) return;
  const Columns columns = SplitColumns(1, width, LanesFor<A>(width), most);
  WithLanes<A>(columns.lanes, [&](auto constant) {
    using Reduced = Op<T, decltype(constant)::kValue>;
    const ColumnRows<A, most, Reduced> rows{Reduced(a), columns};
    ReduceRows<A>(Cuts(a.edges, !a.resume, numbers_per_edge), workers, rows);
  });
}

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_COLUMN_ROWS_H_
