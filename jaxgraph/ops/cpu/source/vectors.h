// Vectors of numbers, which a compiler maps to the registers of the processor, and the types of
// numbers in memory.

#ifndef JAXGRAPH_VECTORS_H_
#define JAXGRAPH_VECTORS_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "numbers.h"

namespace jaxgraph {
namespace JAXGRAPH_LEVEL {

#define JAXGRAPH_INLINE inline __attribute__((always_inline))
#define JAXGRAPH_LAMBDA __attribute__((always_inline))

// For a loop over a few vectors, which stay in registers only if it is unrolled.
#if defined(__clang__)
#define JAXGRAPH_UNROLL _Pragma("unroll")
#else
#define JAXGRAPH_UNROLL _Pragma("GCC unroll 8")
#endif

template <class T, int lanes>
struct VectorOf {
  typedef T type __attribute__((vector_size(lanes * sizeof(T))));
};

template <class T, int lanes>
using Vector = typename VectorOf<T, lanes>::type;

#if defined(__AVX512F__)
constexpr int kRegisterBytes = 64;
#elif defined(__AVX__)
constexpr int kRegisterBytes = 32;
#else
constexpr int kRegisterBytes = 16;
#endif

template <class A>
constexpr int kLanes = kRegisterBytes / sizeof(A);

template <int value>
struct Constant {
  static constexpr int kValue = value;
};

// Whether sums of this type have code for special cases. Sums of 64 bits serve comparisons.
template <class A>
constexpr bool kIsFast = sizeof(A) <= 4;

template <class V>
JAXGRAPH_INLINE V LoadBits(const void* from) {
  V value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

template <class V, class U>
JAXGRAPH_INLINE V Reinterpret(const U& bits) {
  static_assert(sizeof(V) == sizeof(U));
  V value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// `lanes` numbers of the accumulation type.
template <class A, int lanes>
JAXGRAPH_INLINE Vector<A, lanes> Load(const A* from) {
  return LoadBits<Vector<A, lanes>>(from);
}

template <class A, int lanes>
JAXGRAPH_INLINE Vector<A, lanes> Load(const BFloat16* from) {
  static_assert(sizeof(A) == 4);
  const auto bits = LoadBits<Vector<uint16_t, lanes>>(from);
  const auto wide = __builtin_convertvector(bits, Vector<uint32_t, lanes>);
  return Reinterpret<Vector<A, lanes>>(wide << 16);
}

template <class A, int lanes>
JAXGRAPH_INLINE void Store(A* to, const Vector<A, lanes>& value) {
  std::memcpy(to, &value, sizeof(value));
}

// Rounded to nearest, ties to even.
template <class A, int lanes>
JAXGRAPH_INLINE void Store(BFloat16* to, const Vector<A, lanes>& value) {
  const auto bits = Reinterpret<Vector<uint32_t, lanes>>(value);
  const auto rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const auto quiet = (bits >> 16) | 0x40;
  const auto kept = value == value ? rounded : quiet;
  const auto narrow = __builtin_convertvector(kept, Vector<uint16_t, lanes>);
  std::memcpy(to, &narrow, sizeof(narrow));
}

template <class A, int lanes>
JAXGRAPH_INLINE Vector<A, lanes> All(A value) {
  return Vector<A, lanes>{} + value;
}

// function(Constant<lanes>, place) for `count` numbers, full vectors first.
template <class A, class Function>
JAXGRAPH_INLINE void ForEachPlace(int64_t count, Function function) {
  int64_t place = 0;
  for (; place + kLanes<A> <= count; place += kLanes<A>) function(Constant<kLanes<A>>{}, place);
  if constexpr (kLanes<A> > 4) {
    for (; place + 4 <= count; place += 4) function(Constant<4>{}, place);
  }
  for (; place < count; ++place) function(Constant<1>{}, place);
}

// to = from, converted where the types differ
template <class A, class To, class From>
JAXGRAPH_INLINE void CopyRow(To* to, const From* from, int64_t count) {
  ForEachPlace<A>(count, [&](auto constant, int64_t place) JAXGRAPH_LAMBDA {
    constexpr int lanes = decltype(constant)::kValue;
    Store<A, lanes>(to + place, Load<A, lanes>(from + place));
  });
}

// to = to * factor
template <class A>
JAXGRAPH_INLINE void ScaleRow(A* to, A factor, int64_t count) {
  ForEachPlace<A>(count, [&](auto constant, int64_t place) JAXGRAPH_LAMBDA {
    constexpr int lanes = decltype(constant)::kValue;
    Store<A, lanes>(to + place, Load<A, lanes>(to + place) * factor);
  });
}

// to = to + from
template <class A>
JAXGRAPH_INLINE void AddRow(A* to, const A* from, int64_t count) {
  ForEachPlace<A>(count, [&](auto constant, int64_t place) JAXGRAPH_LAMBDA {
    constexpr int lanes = decltype(constant)::kValue;
    Store<A, lanes>(to + place, Load<A, lanes>(to + place) + Load<A, lanes>(from + place));
  });
}

// Lane i of the result is lane order[i] of `value`.
template <class A, int lanes, class Order>
JAXGRAPH_INLINE Vector<A, lanes> Shuffle(const Vector<A, lanes>& value, const Order& order) {
#if defined(__clang__)
  Vector<A, lanes> result;
  for (int i = 0; i < lanes; ++i) result[i] = value[order[i]];
  return result;
#else
  return __builtin_shuffle(value, order);
#endif
}

// The same for two vectors: lanes of `other` are numbered after those of `value`.
template <class A, int lanes, class Order>
JAXGRAPH_INLINE Vector<A, lanes> Shuffle(const Vector<A, lanes>& value,
                                         const Vector<A, lanes>& other, const Order& order) {
#if defined(__clang__)
  Vector<A, lanes> result;
  for (int i = 0; i < lanes; ++i) {
    result[i] = order[i] < lanes ? value[order[i]] : other[order[i] - lanes];
  }
  return result;
#else
  return __builtin_shuffle(value, other, order);
#endif
}

// Integers as wide as A, for shuffles.
template <class A, int lanes>
using Order = Vector<std::conditional_t<sizeof(A) == 4, int32_t, int64_t>, lanes>;

// The sum of all lanes, halves first.
template <class A, int lanes>
JAXGRAPH_INLINE A Total(const Vector<A, lanes>& value) {
  if constexpr (lanes == 1) {
    return value[0];
  } else {
    Vector<A, lanes / 2> low, high;
    std::memcpy(&low, &value, sizeof(low));
    std::memcpy(&high, reinterpret_cast<const char*>(&value) + sizeof(low), sizeof(high));
    return Total<A, lanes / 2>(low + high);
  }
}

// The sum of term(Constant<lanes>, place) over `count` places, full vectors first.
template <class A, class Term>
JAXGRAPH_INLINE A TotalOver(int64_t count, Term term) {
  constexpr int lanes = kLanes<A>;
  Vector<A, lanes> sum{};
  int64_t place = 0;
  for (; place + lanes <= count; place += lanes) sum += term(Constant<lanes>{}, place);
  A total = place > 0 ? Total<A, lanes>(sum) : A{};
  if constexpr (lanes > 4) {
    Vector<A, 4> four{};
    for (; place + 4 <= count; place += 4) four += term(Constant<4>{}, place);
    total += Total<A, 4>(four);
  }
  for (; place < count; ++place) total += term(Constant<1>{}, place)[0];
  return total;
}

// e^x for x <= 88; 0 below -87.3, where the result would be subnormal. Error below 2 units in the
// last place: Cephes' polynomial after reduction by a two-part ln 2.
template <int lanes>
JAXGRAPH_INLINE Vector<float, lanes> Exp(const Vector<float, lanes>& x) {
  using F = Vector<float, lanes>;
  using I = Vector<int32_t, lanes>;
  const F low = F{} - 87.33654f;
  const F clamped = x < low ? low : x;
  // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer.
  const F shifted = clamped * 1.44269504f + 12582912.0f;
  const F n = shifted - 12582912.0f;
  F r = clamped - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  F p = F{} + 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const I exponent = Reinterpret<I>(shifted) - Reinterpret<I>(F{} + 12582912.0f);
  const F scaled = Reinterpret<F>(Reinterpret<I>(p) + (exponent << 23));
  return x < low ? F{} : scaled;
}

template <int lanes>
JAXGRAPH_INLINE Vector<double, lanes> Exp(const Vector<double, lanes>& x) {
  Vector<double, lanes> y;
  for (int i = 0; i < lanes; ++i) y[i] = std::exp(x[i]);
  return y;
}

}  // namespace JAXGRAPH_LEVEL
}  // namespace jaxgraph

#endif  // JAXGRAPH_VECTORS_H_
