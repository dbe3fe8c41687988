// Vectors as wide as the instruction set that this translation unit is compiled for.
//
// The kernels are compiled once per instruction set, each time into a namespace of its own
// (STPN_ISA), so that the linker can never mix code of two instruction sets. For the same reason
// nothing here instantiates a template of the standard library.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>

namespace stpn::STPN_ISA {

using idx = ptrdiff_t;

#define STPN_INLINE inline __attribute__((always_inline))
#define STPN_LAMBDA __attribute__((always_inline))

template <auto N> struct Constant {
  static constexpr auto value = N;
};
template <class C> struct Type {
  using type = C;
};

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <class T> struct Vec;
template <> struct Vec<float> {
  typedef float type __attribute__((vector_size(kVectorBytes)));
  typedef int32_t bits __attribute__((vector_size(kVectorBytes)));
};
template <> struct Vec<double> {
  typedef double type __attribute__((vector_size(kVectorBytes)));
  typedef int64_t bits __attribute__((vector_size(kVectorBytes)));
};
template <class T> using V = typename Vec<T>::type;

template <class T> constexpr int kLanes = kVectorBytes / int(sizeof(T));

// Rows are padded with zeros to whole vectors: no sweep over synapses has a tail.
template <class T> STPN_INLINE idx padded(idx n) {
  return (n + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
}

template <class T> STPN_INLINE V<T> load(const T* p) {
  V<T> v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class T> STPN_INLINE void store(T* p, V<T> v) { __builtin_memcpy(p, &v, sizeof v); }
template <class T> STPN_INLINE V<T> splat(T s) { return s - V<T>{}; }

STPN_INLINE Vec<float>::bits as_bits(Vec<float>::type v) { return (Vec<float>::bits)v; }
STPN_INLINE Vec<double>::bits as_bits(Vec<double>::type v) { return (Vec<double>::bits)v; }

STPN_INLINE Vec<float>::type abs(Vec<float>::type v) {
  return (Vec<float>::type)(as_bits(v) & 0x7fffffff);
}
STPN_INLINE Vec<double>::type abs(Vec<double>::type v) {
  return (Vec<double>::type)(as_bits(v) & 0x7fffffffffffffffLL);
}

// Like torch.clamp, a NaN stays a NaN: both comparisons with it are false.
template <class T> STPN_INLINE V<T> clamp(V<T> v, V<T> limit) {
  v = v > limit ? limit : v;
  return v < -limit ? -limit : v;
}

// -1, 0 or 1; the derivative of |v| that torch uses.
template <class T> STPN_INLINE V<T> sign(V<T> v) {
  const V<T> zero{}, one = splat(T(1));
  return (v > zero ? one : zero) - (v < zero ? one : zero);
}

STPN_INLINE float sum(Vec<float>::type v) {
#if defined(__AVX512F__)
  typedef float Half __attribute__((vector_size(32)));
  const Half h = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                 __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
#elif defined(__AVX2__)
  const Vec<float>::type h = v;
#endif
  typedef float Quad __attribute__((vector_size(16)));
#if defined(__AVX2__)
  Quad q = __builtin_shufflevector(h, h, 0, 1, 2, 3) + __builtin_shufflevector(h, h, 4, 5, 6, 7);
#else
  Quad q = v;
#endif
  q += __builtin_shufflevector(q, q, 2, 3, 0, 1);
  return q[0] + q[1];
}

STPN_INLINE double sum(Vec<double>::type v) {
  double s = 0;
  for (int k = 0; k < kLanes<double>; ++k) s += v[k];
  return s;
}

template <class T> STPN_INLINE V<T> sqrt(V<T> v) {
  V<T> r{};
  for (int k = 0; k < kLanes<T>; ++k)
    r[k] = sizeof(T) == 4 ? T(__builtin_sqrtf(float(v[k]))) : T(__builtin_sqrt(v[k]));
  return r;
}

// exp in single precision: x = n ln 2 + r, |r| <= ln 2 / 2, then a polynomial in r and 2^n by its
// exponent bits. Below 2 ulp; arguments beyond the range of normal floats saturate.
STPN_INLINE Vec<float>::type exp(Vec<float>::type x) {
  typedef Vec<float>::type F;
  x = x > splat(88.02f) ? splat(88.02f) : x;
  x = x < splat(-87.33f) ? splat(-87.33f) : x;
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer
  const F shifted = x * 1.44269504088896341f + magic;
  const F n = shifted - magic;
  F r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  F p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const F power = (F)((as_bits(shifted) - as_bits(splat(magic)) + 127) << 23);
  return p * power;
}

STPN_INLINE Vec<float>::type tanh(Vec<float>::type x) {
  typedef Vec<float>::type F;
  const F a = abs(x), x2 = x * x;
  F p = splat(-5.70498872745e-3f);  // odd polynomial near zero, where 1 - 2/(e^2x + 1) cancels
  p = p * x2 + 2.06390887954e-2f;
  p = p * x2 - 5.37397155531e-2f;
  p = p * x2 + 1.33314422036e-1f;
  p = p * x2 - 3.33332819422e-1f;
  const F small = p * x2 * x + x;
  const F large = 1.0f - 2.0f / (exp(a + a) + 1.0f);
  return a < splat(0.625f) ? small : (x < splat(0.0f) ? -large : large);
}

// Zero where the true exp overflows: an infinite synapse of a silent neuron is to show, as 0 times
// it.
STPN_INLINE Vec<float>::type sigmoid(Vec<float>::type x) {
  return x < splat(-88.73f) ? splat(0.0f) : 1.0f / (1.0f + exp(-x));
}

STPN_INLINE Vec<double>::type tanh(Vec<double>::type x) {
  Vec<double>::type r{};
  for (int k = 0; k < kLanes<double>; ++k) r[k] = ::tanh(x[k]);
  return r;
}

STPN_INLINE Vec<double>::type sigmoid(Vec<double>::type x) {
  Vec<double>::type r{};
  for (int k = 0; k < kLanes<double>; ++k) r[k] = 1.0 / (1.0 + ::exp(-x[k]));
  return r;
}

template <class T> STPN_INLINE V<T> relu(V<T> x) { return x < V<T>{} ? V<T>{} : x; }

}  // namespace stpn::STPN_ISA
