// Vector exp, log, logistic, tanh and softplus for float and double, each within 3 ulp (tests/kernels/test_elementwise.py).
//
//   e^x = 2^n e^r,  n = round(x / ln 2),  |r| <= ln 2 / 2,  e^r = 1 + r + r^2 q(r)
//
// Every lane takes the same path whatever its value, so a result never depends on its position.
// q interpolates (e^r - 1 - r) / r^2 at the Chebyshev nodes of that interval (error 8e-9 in float, 2e-19 in double).
// NaN stays NaN because a comparison with NaN is false and each clamp keeps its argument then.
#pragma once
#include <limits>

#include "simd.h"

namespace elman::ELMAN_NS {

template <class T> struct IntOf;
template <> struct IntOf<float> { typedef int32_t type __attribute__((vector_size(vector_bytes))); };
template <> struct IntOf<double> { typedef int64_t type __attribute__((vector_size(vector_bytes))); };
template <class T> using Int = typename IntOf<T>::type;

template <class T> struct ExpOf;

template <> struct ExpOf<float> {
  static constexpr int mantissa = 23;
  static constexpr int32_t bias = 127;
  static constexpr float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
  static constexpr float log2e = 1.44269504f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
  static constexpr float smallest = -104.0f;  // e^x rounds to 0 below
  static constexpr float tanh_is_one = 10.0f;
  static constexpr float q[] = {0.5f, 0.166665768f, 0.0416665544f, 0.00836320297f, 0.00139262135f};
  static constexpr int atanh_terms = 5;
};

template <> struct ExpOf<double> {
  static constexpr int mantissa = 52;
  static constexpr int64_t bias = 1023;
  static constexpr double shift = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double log2e = 1.4426950408889634, ln2_high = 0.69314718036912382, ln2_low = 1.9082149292705877e-10;
  static constexpr double smallest = -746.0;
  static constexpr double tanh_is_one = 20.0;
  static constexpr double q[] = {0.5, 0.16666666666666671, 0.041666666666666664, 0.0083333333333261393,
                                 0.0013888888888885266, 0.00019841269874838988, 2.4801587322981795e-05,
                                 2.7557255371562385e-06, 2.7557275831269738e-07, 2.5105226897097635e-08,
                                 2.0913890994369145e-09};
  static constexpr int atanh_terms = 11;
};

template <class T> ELMAN_INLINE Int<T> sign_bit() { return (Int<T>)splat<T>(T(-0.0)); }

template <class T> ELMAN_INLINE Vec<T> minus_absolute(Vec<T> x) { return (Vec<T>)((Int<T>)x | sign_bit<T>()); }

template <class T> ELMAN_INLINE Vec<T> copy_sign(Vec<T> magnitude, Vec<T> sign) {
  return (Vec<T>)(((Int<T>)magnitude & ~sign_bit<T>()) | ((Int<T>)sign & sign_bit<T>()));
}

// 2^n, for n that the caller has clamped to the exponents of normal numbers.
template <class T> ELMAN_INLINE Vec<T> power_of_two(Int<T> n) {
  return (Vec<T>)((n + ExpOf<T>::bias) << ExpOf<T>::mantissa);
}

template <class T> struct Reduced {
  Int<T> n;
  Vec<T> expm1;  // e^r - 1
};

template <class T> ELMAN_INLINE Reduced<T> reduce(Vec<T> x) {
  using C = ExpOf<T>;
  const Vec<T> shifted = fma(x, splat<T>(C::log2e), splat<T>(C::shift));
  const Vec<T> n = shifted - C::shift;
  Vec<T> r = fma(n, splat<T>(-C::ln2_high), x);
  r = fma(n, splat<T>(-C::ln2_low), r);
  constexpr int degree = sizeof(C::q) / sizeof(T) - 1;
  Vec<T> q = splat<T>(C::q[degree]);
#pragma GCC unroll 16
  for (int i = degree - 1; i >= 0; i--) q = fma(q, r, splat<T>(C::q[i]));
  return {(Int<T>)shifted - (Int<T>)splat<T>(C::shift), fma(q, r * r, r)};
}

// e^x for x <= -smallest.
template <class T> ELMAN_INLINE Vec<T> decay(Vec<T> x) {
  using C = ExpOf<T>;
  x = x < C::smallest ? splat<T>(C::smallest) : x;
  const Reduced<T> e = reduce<T>(x);
  const Int<T> half = e.n >> 1;  // two factors, so that a denormal result is rounded once
  const Vec<T> a = power_of_two<T>(half), b = power_of_two<T>(e.n - half);
  return fma(e.expm1, a, a) * b;
}

// e^x; infinity where it overflows.
template <class T> ELMAN_INLINE Vec<T> exponential(Vec<T> x) {
  return decay<T>(x > -ExpOf<T>::smallest ? splat<T>(-ExpOf<T>::smallest) : x);
}

// 1 / (1 + e^-x), or e^x / (1 + e^x) for x < 0, so that small values keep their precision.
template <class T> ELMAN_INLINE Vec<T> logistic(Vec<T> x) {
  const Vec<T> e = decay<T>(minus_absolute<T>(x));
  return (x < T(0) ? e : splat<T>(T(1))) / (e + T(1));
}

// tanh |x| = -m / (2 + m), m = e^(-2|x|) - 1: no cancellation at 0, 1 exactly when m rounds to -1.
template <class T> ELMAN_INLINE Vec<T> hyperbolic_tangent(Vec<T> x) {
  using C = ExpOf<T>;
  Vec<T> size = minus_absolute<T>(x);
  size = size < -C::tanh_is_one ? splat<T>(-C::tanh_is_one) : size;
  const Reduced<T> e = reduce<T>(size + size);
  const Vec<T> scale = power_of_two<T>(e.n);
  const Vec<T> m = fma(scale, e.expm1, scale - T(1));
  return copy_sign<T>(m / (m + T(2)), x);
}

// log(1 + e) for e in [0, 1]: 1 + e = 2^k (1 + f), log(1 + f) = 2 atanh(s), s = f / (2 + f).
template <class T> ELMAN_INLINE Vec<T> log_one_plus(Vec<T> e) {
  const auto upper = e > T(0.41421356);
  const Vec<T> f = upper ? (e - T(1)) * T(0.5) : e;
  const Vec<T> s = f / (f + T(2)), s2 = s * s;
  constexpr int terms = ExpOf<T>::atanh_terms;
  Vec<T> sum = splat<T>(T(2) / T(2 * terms + 1));
#pragma GCC unroll 16
  for (int i = terms - 1; i >= 1; i--) sum = fma(sum, s2, splat<T>(T(2) / T(2 * i + 1)));
  const Vec<T> log = fma(s * s2, sum, s + s);
  return upper ? log + T(0.6931471805599453) : log;
}

// x = 2^n m, m in [sqrt(1/2), sqrt(2)):  log x = n ln 2 + 2 atanh((m - 1) / (m + 1)).
template <class T> ELMAN_INLINE Vec<T> logarithm(Vec<T> x) {
  using C = ExpOf<T>;
  const Vec<T> lift = power_of_two<T>(Int<T>{} + C::mantissa);
  const auto small = x < std::numeric_limits<T>::min();  // denormal: made normal first
  const Vec<T> normal = small ? x * lift : x;
  const Int<T> one = (Int<T>)splat<T>(T(1)), low = ((Int<T>{} + 1) << C::mantissa) - 1;
  Vec<T> m = (Vec<T>)(((Int<T>)normal & low) | one);
  Int<T> n = ((Int<T>)normal >> C::mantissa) - C::bias - (small ? Int<T>{} + C::mantissa : Int<T>{});
  const auto upper = m > T(1.4142135623730951);
  m = upper ? m * T(0.5) : m;
  n = upper ? n + 1 : n;
  const Vec<T> f = m - T(1), s = f / (f + T(2)), s2 = s * s;
  constexpr int terms = C::atanh_terms;
  Vec<T> sum = splat<T>(T(2) / T(2 * terms + 1));
#pragma GCC unroll 16
  for (int i = terms - 1; i >= 1; i--) sum = fma(sum, s2, splat<T>(T(2) / T(2 * i + 1)));
  // 2 s = f - s f: the first term without the rounding of s.
  const Vec<T> tail = fma(-s, f, s * s2 * sum);
  const Vec<T> k = __builtin_convertvector(n, Vec<T>);
  const Vec<T> log = fma(k, splat<T>(C::ln2_high), f + fma(k, splat<T>(C::ln2_low), tail));
  constexpr T infinity = std::numeric_limits<T>::infinity();
  const Vec<T> edge = x == T(0) ? splat<T>(-infinity) : (x == infinity ? x : splat<T>(std::numeric_limits<T>::quiet_NaN()));
  return (x > T(0)) & (x < infinity) ? log : edge;
}

template <class T> ELMAN_INLINE Vec<T> log_one_plus_exp(Vec<T> x) {
  const Vec<T> positive = x < T(0) ? splat<T>(T(0)) : x;
  return positive + log_one_plus<T>(decay<T>(minus_absolute<T>(x)));
}

}  // namespace elman::ELMAN_NS
