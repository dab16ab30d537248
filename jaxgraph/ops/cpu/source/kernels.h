// The arguments of the kernels, and a table of functions per level of the instruction set.

#ifndef JAXGRAPH_KERNELS_H_
#define JAXGRAPH_KERNELS_H_

#include <cstdint>

#include "edges.h"
#include "numbers.h"

namespace jaxgraph {

// y_i = sum_{e: j -> i} w_e x_j, added to y or (`resume` false) written.
template <class T>
struct SumArguments {
  using A = Accumulator<T>;
  Edges edges;
  const T* x;           // [neighbor rows, heads * width]
  const T* weights;     // [slots, heads], or null: 1
  const bool* missing;  // [rows]: rows that add their own x too, or null
  A* y;                 // [rows, heads * width]
  bool resume;
  int64_t heads;
  int64_t width;
};

// y_e = <x_i, z_j> per head for e: j -> i.
template <class T>
struct ProductArguments {
  using A = Accumulator<T>;
  Edges edges;
  const T* x;  // [rows, heads * width]
  const T* z;  // [neighbor rows, heads * width]
  T* y;        // [slots, heads]
  int64_t heads;
  int64_t width;
};

// y_i = max_{e: j -> i} x_j, or min, and the number of x_j equal to it; NaN where an x_j is NaN.
template <class T>
struct ExtremumArguments {
  using A = Accumulator<T>;
  Edges edges;
  const T* x;           // [neighbor rows, width]
  const bool* missing;  // [rows]: rows that compare their own x too, or null
  A* best;              // [rows, width]
  A* count;
  bool resume;
  bool maximum;
  int64_t width;
};

// dx_j = sum_{e: j -> i} g_i where x_j = y_i, or both are NaN; rows are the senders.
template <class T>
struct WinnerArguments {
  using A = Accumulator<T>;
  Edges edges;
  const T* x;           // [rows, width]
  const bool* missing;  // [rows], or null
  const T* y;           // [neighbor rows, width]: the winner
  const A* gradient;    // [neighbor rows, width]: each winner's share
  A* dx;                // [rows, width]
  bool resume;
  int64_t width;
};

// The logits e_ij of attention, from the two ends of an edge: a row and its neighbor.
enum class Attention : int64_t {
  kGat,    // leaky_relu(x_i + z_j), x and z [rows, heads]
  kGatV2,  // <a, leaky_relu(x_i + z_j)>, x and z [rows, heads * width], a [heads * width]
  kDot,    // scale <x_i, z_j>, x and z [rows, heads * width]
};

template <class T>
struct LogitArguments {
  using A = Accumulator<T>;
  Attention kind;
  double parameter;  // the slope of the leaky ReLU, or the scale
  // x and z: of GAT, else null. Rows of z are `neighbor_stride` numbers apart.
  const A* row_logits;
  const A* neighbor_logits;
  int64_t neighbor_stride;
  // x and z: of the others, else null.
  const T* row;
  const T* neighbor;
  const A* attention;  // a, or null
};

// The coefficients that are dropped, as `jaxgraph.ops.randomness.edge_keep_mask` draws them.
struct Dropout {
  const uint32_t* seed;  // two words, or null: none is dropped
  const int32_t* sender_ids;
  const int32_t* receiver_ids;
  const int32_t* repetition;  // [slots], or null: 0
  uint32_t threshold;
  double scale;  // of kept coefficients
};

// Rows with a message from themselves that no edge carries.
struct SelfMessages {
  const bool* missing;  // or null: no such row
  int64_t count;        // rows that `missing` covers, the first ones

  bool At(int64_t row) const { return missing != nullptr && row < count && missing[row]; }
};

// The state of a softmax and of its weighted sum, per row and head: m_i = max_j e_ij, z_i = sum_j
// exp(e_ij - m_i) and y_i = sum_j d_ij exp(e_ij - m_i) v_j / z_i, 0 where z_i is 0.
template <class T>
struct AttentionArguments {
  using A = Accumulator<T>;
  Edges edges;
  LogitArguments<T> logits;
  Dropout dropout;
  SelfMessages self;
  const T* values;  // v [neighbor rows, heads * width]
  A* peak;          // m [rows, heads]
  A* total;         // z [rows, heads]
  A* sums;          // y [rows, heads * width]
  bool resume;
  int64_t heads;
  int64_t width;
};

// The gradients of attention that are summed at senders; rows are the senders. With g_i the
// gradient of
// y_i / z_i, and p_ij = exp(e_ij - m_i) / z_i: dv_j = sum_i d_ij p_ij g_i and
// de_ij = p_ij (d_ij <g_i, v_j> - <g_i, y_i / z_i>).
template <class T>
struct AttentionGradientArguments {
  using A = Accumulator<T>;
  Edges edges;
  LogitArguments<T> logits;
  Dropout dropout;
  SelfMessages self;
  const T* values;    // v [rows, heads * width]
  // g [neighbor rows, heads * width], or, where all heads share it, [neighbor rows, width]
  const T* gradient;
  bool is_shared;
  // m, finite, <g_i, y_i / z_i> and 1 / z_i (null where g_i has been divided), all [neighbor rows,
  // heads], with rows `stride` numbers apart: all numbers of a neighbor are in one line of the
  // cache.
  const A* peak;
  const A* inner;
  const A* inverse;
  int64_t stride;
  // The outputs, null where not wanted. `dvalues`: for GATv2 the gradient of senders as values and
  // in the logits. `dsender`: for GAT the gradient of the sender's logits, else of the keys.
  A* dvalues;     // [rows, heads * width]
  A* dsender;     // [rows, heads], dot product: [rows, heads * width]
  // de_ij times the derivative of e_ij in x_i + z_j (GAT), in e_ij (GATv2), in the product (dot).
  A* per_edge;    // [slots, heads]
  A* per_self;    // [self.count, heads], of the self-messages
  bool resume;
  int64_t heads;
  int64_t width;
};

// The gradients of GATv2's logits that are summed at receivers; rows are the receivers. With
// h_ij = x_i + z_j: dx_i = a sum_j de_ij leaky'(h_ij) and da = sum_ij de_ij leaky(h_ij).
template <class T>
struct HiddenGradientArguments {
  using A = Accumulator<T>;
  Edges edges;
  LogitArguments<T> logits;
  SelfMessages self;
  const A* per_edge;  // de [slots, heads]
  const A* per_self;  // [self.count, heads]
  A* drow;            // dx [rows, heads * width]
  bool resume;
  A* dattention;      // da [heads * width], added to
  int64_t heads;
  int64_t width;
};

// y_i = sum_e w_e over the edges e of row i.
template <class A>
struct EdgeSumArguments {
  Edges edges;
  const A* weights;  // [slots, heads]
  A* y;              // [rows, heads]
  bool resume;
  int64_t heads;
};

// Two tables with equally many rows, used as one with the columns of both; the second may be empty.
template <class T>
struct SideBySide {
  T* left;
  int64_t left_width;
  T* right = nullptr;
  int64_t right_width = 0;

  int64_t Width() const { return left_width + right_width; }
};

// y = sum_k x_k g_k^T: the gradient of W, where g is the gradient of x W.
template <class T>
struct WeightGradientArguments {
  using A = Accumulator<T>;
  const T* x;                    // [rows, in_width]
  SideBySide<const T> gradient;  // [rows, out_width]
  A* y;                          // [in_width, out_width]
  int64_t rows;
  int64_t in_width;
};

// y = x W.
template <class T>
struct RowProductArguments {
  SideBySide<const T> x;  // [rows, in_width]
  const T* map;           // W [in_width, out_width]
  SideBySide<T> y;        // [rows, out_width]
  int64_t rows;
};

// The operations of a program, numbered as in `jaxgraph.ops.core.elementwise`.
enum class Operation : int32_t {
  // Numbers from `a` on of a table, of the edge, of the parameters, or a constant.
  kRow, kNeighbor, kParameter, kEdge, kConstant,
  kAdd, kSub, kMul, kDiv, kMax, kMin, kNeg, kAbs, kSign, kExp, kLog, kTanh, kLogistic, kSqrt,
  kGt, kGe, kLt, kLe, kEq, kNe, kSelect,
};

// Register `to` = operation of registers a, b and c.
struct Instruction {
  int32_t operation, to, a, b, c;
};

constexpr int kMostRegisters = 32;
constexpr int kMostSums = 8;

// y_i = sum_{e: j -> i} f_s(row i, neighbor j, edge e, parameters) for each sum s, and for each dot
// d and edge e the total of f_d over all columns.
template <class A>
struct ProgramArguments {
  Edges edges;
  const A* rows;  // [rows, row_stride]
  int64_t row_stride;
  const A* neighbors;  // [neighbor rows, neighbor_stride]
  int64_t neighbor_stride;
  const A* per_edge;  // [slots, edge_stride]
  int64_t edge_stride;
  const A* parameters;
  const A* constants;
  const Instruction* program;
  int32_t num_of_row;  // the first instructions, which need no edge
  int32_t num_instructions;
  int32_t num_registers;
  const int32_t* sums;  // registers
  int32_t num_sums;
  const int32_t* dots;  // registers
  int32_t num_dots;
  A* y;         // [rows, num_sums * width]
  A* of_edges;  // [slots, num_dots]
  bool resume;
  int64_t width;
};

// The most heads that attention supports.
constexpr int64_t kMostHeads = 64;

template <class T>
struct Kernels {
  void (*sum)(const SumArguments<T>&, Workers&);
  void (*product)(const ProductArguments<T>&, Workers&);
  void (*extremum)(const ExtremumArguments<T>&, Workers&);
  void (*winner)(const WinnerArguments<T>&, Workers&);
  void (*attention)(const AttentionArguments<T>&, Workers&);
  void (*attention_gradient)(const AttentionGradientArguments<T>&, Workers&);
  void (*hidden_gradient)(const HiddenGradientArguments<T>&, Workers&);
  void (*edge_sum)(const EdgeSumArguments<Accumulator<T>>&, Workers&);
  void (*weight_gradient)(const WeightGradientArguments<T>&, Workers&);
  void (*row_product)(const RowProductArguments<T>&, Workers&);
  void (*program)(const ProgramArguments<Accumulator<T>>&, Workers&);
};

// The kernels of the highest level that this processor has.
template <class T>
const Kernels<T>& KernelsFor();

// The name of that level.
const char* LevelName();

}  // namespace jaxgraph

#endif  // JAXGRAPH_KERNELS_H_
