// The kernels of attention as XLA custom calls.

#include "binding.h"

namespace jaxgraph {
namespace {

using Words = ffi::Buffer<ffi::U32>;

SelfMessages BindSelf(const ffi::AnyBuffer& missing) {
  return {DataOrNull<const bool>(missing), static_cast<int64_t>(missing.element_count())};
}

// `starts`: the first id of a sender and of a receiver, or empty: both are the first of all.
Dropout BindDropout(const Words& seed, const Integers& sender_ids, const Integers& receiver_ids,
                    const Integers& starts, const Integers& repetition, int64_t threshold,
                    double scale) {
  const int32_t* start = DataOrNull<const int32_t>(starts);
  return {DataOrNull<const uint32_t>(seed),
          sender_ids.typed_data() + (start == nullptr ? 0 : start[0]),
          receiver_ids.typed_data() + (start == nullptr ? 0 : start[1]),
          DataOrNull<const int32_t>(repetition),
          static_cast<uint32_t>(threshold),
          scale};
}

template <class T>
LogitArguments<T> BindLogits(int64_t kind, double parameter, const ffi::AnyBuffer& row,
                             const ffi::AnyBuffer& neighbor, const ffi::AnyBuffer& attention) {
  using A = Accumulator<T>;
  LogitArguments<T> logits{};
  logits.kind = static_cast<Attention>(kind);
  logits.parameter = parameter;
  logits.attention = DataOrNull<const A>(attention);
  if (logits.kind == Attention::kGat) {
    logits.row_logits = static_cast<const A*>(row.untyped_data());
    logits.neighbor_logits = static_cast<const A*>(neighbor.untyped_data());
    logits.neighbor_stride = neighbor.dimensions()[1];
  } else {
    logits.row = static_cast<const T*>(row.untyped_data());
    logits.neighbor = static_cast<const T*>(neighbor.untyped_data());
  }
  return logits;
}

ffi::Error CheckHeads(int64_t heads) {
  return Check(heads <= kMostHeads, "attention has too many heads");
}

ffi::Error AttentionHandler(ffi::ThreadPool pool, Integers group, Integers pointers, Integers rows,
                            Integers starts, Integers neighbors, Integers slots,
                            ffi::AnyBuffer receiver, ffi::AnyBuffer sender,
                            ffi::AnyBuffer attention, ffi::AnyBuffer values, Words seed,
                            Integers sender_ids, Integers receiver_ids, Integers id_starts,
                            Integers repetition, ffi::AnyBuffer missing, ffi::AnyBuffer before,
                            ffi::AnyBuffer, ffi::AnyBuffer, ffi::Result<ffi::AnyBuffer> peak,
                            ffi::Result<ffi::AnyBuffer> total, ffi::Result<ffi::AnyBuffer> sums,
                            int64_t kind, double parameter, int64_t threshold, double scale) {
  const auto shape = sums->dimensions();
  if (auto error = CheckHeads(shape[1]); error.failure()) return error;
  const Edges edges = Group(group, pointers, rows, starts, neighbors, slots, shape[0]);
  const Dropout dropout =
      BindDropout(seed, sender_ids, receiver_ids, id_starts, repetition, threshold, scale);
  PoolWorkers workers(pool);
  return WithType(values.element_type(), [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulator<T>;
    KernelsFor<T>().attention(
        {edges, BindLogits<T>(kind, parameter, receiver, sender, attention), dropout,
         BindSelf(missing), static_cast<const T*>(values.untyped_data()),
         static_cast<A*>(peak->untyped_data()), static_cast<A*>(total->untyped_data()),
         static_cast<A*>(sums->untyped_data()), before.element_count() > 0, shape[1], shape[2]},
        workers);
  });
}

ffi::Error AttentionGradientHandler(
    ffi::ThreadPool pool, Integers group, Integers pointers, Integers rows, Integers starts,
    Integers neighbors, Integers slots, ffi::AnyBuffer sender, ffi::AnyBuffer receiver,
    ffi::AnyBuffer attention, ffi::AnyBuffer values, ffi::AnyBuffer gradient,
    ffi::AnyBuffer peak_and_inner, Words seed, Integers sender_ids, Integers receiver_ids,
    Integers id_starts, Integers repetition, ffi::AnyBuffer missing, ffi::AnyBuffer before_values,
    ffi::AnyBuffer before_sender, ffi::Result<ffi::AnyBuffer> dvalues,
    ffi::Result<ffi::AnyBuffer> dsender, ffi::Result<ffi::AnyBuffer> per_edge,
    ffi::Result<ffi::AnyBuffer> per_self, int64_t kind, double parameter, int64_t threshold,
    double scale) {
  const auto shape = values.dimensions();
  if (auto error = CheckHeads(shape[1]); error.failure()) return error;
  const Edges edges = Group(group, pointers, rows, starts, neighbors, slots, shape[0]);
  const Dropout dropout =
      BindDropout(seed, sender_ids, receiver_ids, id_starts, repetition, threshold, scale);
  const bool resume = before_values.element_count() > 0 || before_sender.element_count() > 0;
  // Rows without a message from themselves.
  std::memset(per_self->untyped_data(), 0, per_self->size_bytes());
  PoolWorkers workers(pool);
  return WithType(values.element_type(), [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulator<T>;
    // The last columns: GAT's logits come before them.
    const int64_t stride = peak_and_inner.dimensions()[1];
    const A* inner = static_cast<const A*>(peak_and_inner.untyped_data()) + stride - shape[1];
    KernelsFor<T>().attention_gradient(
        {edges, BindLogits<T>(kind, parameter, sender, receiver, attention), dropout,
         BindSelf(missing), static_cast<const T*>(values.untyped_data()),
         static_cast<const T*>(gradient.untyped_data()),
         inner - shape[1], inner, stride,
         DataOrNull<A>(*dvalues), DataOrNull<A>(*dsender), DataOrNull<A>(*per_edge),
         DataOrNull<A>(*per_self), resume, shape[1], shape[2]},
        workers);
  });
}

ffi::Error HiddenGradientHandler(ffi::ThreadPool pool, Integers group, Integers pointers,
                                 Integers rows, Integers starts, Integers neighbors,
                                 Integers slots, ffi::AnyBuffer receiver, ffi::AnyBuffer sender,
                                 ffi::AnyBuffer attention, ffi::AnyBuffer per_edge,
                                 ffi::AnyBuffer per_self, ffi::AnyBuffer missing,
                                 ffi::AnyBuffer before_receiver, ffi::AnyBuffer before_attention,
                                 ffi::Result<ffi::AnyBuffer> dreceiver,
                                 ffi::Result<ffi::AnyBuffer> dattention, double slope) {
  const auto shape = receiver.dimensions();
  if (auto error = CheckHeads(shape[1]); error.failure()) return error;
  const Edges edges = Group(group, pointers, rows, starts, neighbors, slots, shape[0]);
  if (before_attention.element_count() == 0) {
    std::memset(dattention->untyped_data(), 0, dattention->size_bytes());
  }
  PoolWorkers workers(pool);
  return WithType(receiver.element_type(), [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulator<T>;
    constexpr auto kind = static_cast<int64_t>(Attention::kGatV2);
    KernelsFor<T>().hidden_gradient(
        {edges, BindLogits<T>(kind, slope, receiver, sender, attention), BindSelf(missing),
         static_cast<const A*>(per_edge.untyped_data()), DataOrNull<const A>(per_self),
         static_cast<A*>(dreceiver->untyped_data()), before_receiver.element_count() > 0,
         static_cast<A*>(dattention->untyped_data()), shape[1], shape[2]},
        workers);
  });
}

ffi::Error EdgeSumHandler(ffi::ThreadPool pool, Integers group, Integers pointers, Integers rows,
                          Integers starts, Integers neighbors, Integers slots,
                          ffi::AnyBuffer weights, ffi::AnyBuffer before,
                          ffi::Result<ffi::AnyBuffer> y) {
  const auto shape = y->dimensions();
  const Edges edges = Group(group, pointers, rows, starts, neighbors, slots, shape[0]);
  PoolWorkers workers(pool);
  return WithType(weights.element_type(), [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulator<T>;
    KernelsFor<T>().edge_sum({edges, static_cast<const A*>(weights.untyped_data()),
                              static_cast<A*>(y->untyped_data()), before.element_count() > 0,
                              shape[1]},
                             workers);
  });
}

}  // namespace
}  // namespace jaxgraph

using AnyBuffer = xla::ffi::AnyBuffer;
using Integers = jaxgraph::Integers;
using Words = jaxgraph::Words;

JAXGRAPH_HANDLER(jaxgraph_attention, jaxgraph::AttentionHandler,
                 jaxgraph::BindEdges()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Arg<Words>()
                     .Arg<Integers>()
                     .Arg<Integers>()
                     .Arg<Integers>()
                     .Arg<Integers>()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Ret<AnyBuffer>()
                     .Ret<AnyBuffer>()
                     .Ret<AnyBuffer>()
                     .Attr<int64_t>("kind")
                     .Attr<double>("parameter")
                     .Attr<int64_t>("threshold")
                     .Attr<double>("scale"))
JAXGRAPH_HANDLER(jaxgraph_attention_gradient, jaxgraph::AttentionGradientHandler,
                 jaxgraph::BindEdges()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Arg<Words>()
                     .Arg<Integers>()
                     .Arg<Integers>()
                     .Arg<Integers>()
                     .Arg<Integers>()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Ret<AnyBuffer>()
                     .Ret<AnyBuffer>()
                     .Ret<AnyBuffer>()
                     .Ret<AnyBuffer>()
                     .Attr<int64_t>("kind")
                     .Attr<double>("parameter")
                     .Attr<int64_t>("threshold")
                     .Attr<double>("scale"))
JAXGRAPH_HANDLER(jaxgraph_hidden_gradient, jaxgraph::HiddenGradientHandler,
                 jaxgraph::BindEdges()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Arg<AnyBuffer>()
                     .Ret<AnyBuffer>()
                     .Ret<AnyBuffer>()
                     .Attr<double>("slope"))
JAXGRAPH_HANDLER(jaxgraph_edge_sum, jaxgraph::EdgeSumHandler,
                 jaxgraph::BindEdges().Arg<AnyBuffer>().Arg<AnyBuffer>().Ret<AnyBuffer>())
