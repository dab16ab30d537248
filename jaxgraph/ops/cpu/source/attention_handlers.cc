// The kernels of attention as XLA custom calls.

#include <cstring>

#include "binding.h"

namespace jaxgraph {
namespace {

constexpr char kKind[] = "kind";
constexpr char kParameter[] = "parameter";
constexpr char kThreshold[] = "threshold";
constexpr char kScale[] = "scale";
constexpr char kSlope[] = "slope";
constexpr char kInverse[] = "inverse";

using Kind = ffi::Attr<int64_t, kKind>;
using Parameter = ffi::Attr<double, kParameter>;
using Threshold = ffi::Attr<int64_t, kThreshold>;
using Scale = ffi::Attr<double, kScale>;

SelfMessages BindSelf(const Array& missing) {
  return {DataOrNull<const bool>(missing), static_cast<int64_t>(missing.element_count())};
}

// `starts`: the indices of the first sender and receiver id, or empty: both are 0.
Dropout BindDropout(const Words& seed, const Integers& sender_ids, const Integers& receiver_ids,
                    const Integers& starts, const Integers& repetition, Threshold threshold,
                    Scale scale) {
  const int32_t* start = DataOrNull<const int32_t>(starts);
  return {DataOrNull<const uint32_t>(seed),
          sender_ids.typed_data() + (start == nullptr ? 0 : start[0]),
          receiver_ids.typed_data() + (start == nullptr ? 0 : start[1]),
          DataOrNull<const int32_t>(repetition),
          static_cast<uint32_t>(*threshold),
          *scale};
}

template <class T>
LogitArguments<T> BindLogits(Attention kind, double parameter, const Array& row,
                             const Array& neighbor, const Array& attention) {
  using A = Accumulator<T>;
  LogitArguments<T> logits{};
  logits.kind = kind;
  logits.parameter = parameter;
  logits.attention = DataOrNull<const A>(attention);
  if (kind == Attention::kGat) {
    logits.row_logits = Data<const A>(row);
    logits.neighbor_logits = Data<const A>(neighbor);
    logits.neighbor_stride = neighbor.dimensions()[1];
  } else {
    logits.row = Data<const T>(row);
    logits.neighbor = Data<const T>(neighbor);
  }
  return logits;
}

ffi::Error CheckHeads(int64_t heads) {
  return Check(heads <= kMostHeads, "attention has too many heads");
}

ffi::Error AttentionHandler(const Call& call, Array receiver, Array sender, Array attention,
                            Array values, Words seed, Integers sender_ids, Integers receiver_ids,
                            Integers id_starts, Integers repetition, Array missing, Array before,
                            Array, Array, Output peak, Output total, Output sums, Kind kind,
                            Parameter parameter, Threshold threshold, Scale scale) {
  const auto shape = sums->dimensions();
  if (auto error = CheckHeads(shape[1]); error.failure()) return error;
  const Edges edges = call.To(shape[0]);
  const Dropout dropout =
      BindDropout(seed, sender_ids, receiver_ids, id_starts, repetition, threshold, scale);
  return WithType(values, [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulator<T>;
    const auto logits =
        BindLogits<T>(static_cast<Attention>(*kind), *parameter, receiver, sender, attention);
    KernelsFor<T>().attention(
        {edges, logits, dropout, BindSelf(missing), Data<const T>(values), Data<A>(*peak),
         Data<A>(*total), Data<A>(*sums), IsGiven(before), shape[1], shape[2]},
        call.workers);
  });
}

ffi::Error AttentionGradientHandler(const Call& call, Array sender, Array receiver,
                                    Array attention, Array values, Array gradient,
                                    Array of_receivers, Words seed, Integers sender_ids,
                                    Integers receiver_ids, Integers id_starts, Integers repetition,
                                    Array missing, Array before_values, Array before_sender,
                                    Output dvalues, Output dsender, Output per_edge,
                                    Output per_self, Kind kind, Parameter parameter,
                                    Threshold threshold, Scale scale,
                                    ffi::Attr<bool, kInverse> inverse) {
  const int64_t heads = per_edge->dimensions()[1], width = gradient.dimensions()[2];
  if (auto error = CheckHeads(heads); error.failure()) return error;
  const Edges edges = call.To(values.dimensions().front());
  const Dropout dropout =
      BindDropout(seed, sender_ids, receiver_ids, id_starts, repetition, threshold, scale);
  const bool is_shared = gradient.dimensions()[1] < heads;
  const bool resume = IsGiven(before_values) || IsGiven(before_sender);
  // Rows without a self-message get 0.
  std::memset(per_self->untyped_data(), 0, per_self->size_bytes());
  return WithType(values, [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulator<T>;
    // The last columns: GAT's logits come before them.
    const int64_t stride = of_receivers.dimensions()[1];
    const A* end = Data<const A>(of_receivers) + stride;
    const A* peak = end - (*inverse ? 3 : 2) * heads;
    const auto logits =
        BindLogits<T>(static_cast<Attention>(*kind), *parameter, sender, receiver, attention);
    KernelsFor<T>().attention_gradient(
        {edges, logits, dropout, BindSelf(missing), Data<const T>(values), Data<const T>(gradient),
         is_shared, peak, peak + heads, *inverse ? end - heads : nullptr, stride,
         DataOrNull<A>(*dvalues), DataOrNull<A>(*dsender), DataOrNull<A>(*per_edge),
         DataOrNull<A>(*per_self), resume, heads, width},
        call.workers);
  });
}

ffi::Error HiddenGradientHandler(const Call& call, Array receiver, Array sender, Array attention,
                                 Array per_edge, Array per_self, Array missing,
                                 Array before_receiver, Array before_attention, Output dreceiver,
                                 Output dattention, ffi::Attr<double, kSlope> slope) {
  const auto shape = receiver.dimensions();
  if (auto error = CheckHeads(shape[1]); error.failure()) return error;
  const Edges edges = call.To(shape[0]);
  if (!IsGiven(before_attention)) {
    std::memset(dattention->untyped_data(), 0, dattention->size_bytes());
  }
  return WithType(receiver, [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulator<T>;
    const auto logits = BindLogits<T>(Attention::kGatV2, *slope, receiver, sender, attention);
    KernelsFor<T>().hidden_gradient(
        {edges, logits, BindSelf(missing), Data<const A>(per_edge), DataOrNull<const A>(per_self),
         Data<A>(*dreceiver), IsGiven(before_receiver), Data<A>(*dattention), shape[1], shape[2]},
        call.workers);
  });
}

ffi::Error EdgeSumHandler(const Call& call, Array weights, Array before, Output y) {
  const auto shape = y->dimensions();
  return WithType(weights, [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulator<T>;
    KernelsFor<T>().edge_sum({call.To(shape[0]), Data<const A>(weights), Data<A>(*y),
                              IsGiven(before), shape[1]},
                             call.workers);
  });
}

}  // namespace
}  // namespace jaxgraph

JAXGRAPH_HANDLER(jaxgraph_attention, jaxgraph::AttentionHandler)
JAXGRAPH_HANDLER(jaxgraph_attention_gradient, jaxgraph::AttentionGradientHandler)
JAXGRAPH_HANDLER(jaxgraph_hidden_gradient, jaxgraph::HiddenGradientHandler)
JAXGRAPH_HANDLER(jaxgraph_edge_sum, jaxgraph::EdgeSumHandler)
