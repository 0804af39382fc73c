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

template <class Real> struct IntOf;
template <> struct IntOf<float> {
  typedef int32_t type __attribute__((vector_size(vector_bytes)));
};
template <> struct IntOf<double> {
  typedef int64_t type __attribute__((vector_size(vector_bytes)));
};
template <class Real> using Int = typename IntOf<Real>::type;

template <class Real> struct ExpOf;

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
  static constexpr double q[] = {0.5,
                                 0.16666666666666671,
                                 0.041666666666666664,
                                 0.0083333333333261393,
                                 0.0013888888888885266,
                                 0.00019841269874838988,
                                 2.4801587322981795e-05,
                                 2.7557255371562385e-06,
                                 2.7557275831269738e-07,
                                 2.5105226897097635e-08,
                                 2.0913890994369145e-09};
  static constexpr int atanh_terms = 11;
};

template <class Real> ELMAN_INLINE Int<Real> sign_bit() { return (Int<Real>)splat<Real>(Real(-0.0)); }

template <class Real> ELMAN_INLINE Vec<Real> minus_absolute(Vec<Real> x) {
  return (Vec<Real>)((Int<Real>)x | sign_bit<Real>());
}

template <class Real> ELMAN_INLINE Vec<Real> copy_sign(Vec<Real> magnitude, Vec<Real> sign) {
  return (Vec<Real>)(((Int<Real>)magnitude & ~sign_bit<Real>()) | ((Int<Real>)sign & sign_bit<Real>()));
}

// Rounded rightly, as IEEE 754 has it: the same bits everywhere.
template <class Real> ELMAN_INLINE Vec<Real> square_root(Vec<Real> x) {
  for (int i = 0; i < lanes<Real>; ++i) x[i] = std::sqrt(x[i]);
  return x;
}

// 2^n, for n that the caller has clamped to the exponents of normal numbers.
template <class Real> ELMAN_INLINE Vec<Real> power_of_two(Int<Real> n) {
  return (Vec<Real>)((n + ExpOf<Real>::bias) << ExpOf<Real>::mantissa);
}

template <class Real> struct Reduced {
  Int<Real> n;
  Vec<Real> expm1;  // e^r - 1
};

template <class Real> ELMAN_INLINE Reduced<Real> reduce(Vec<Real> x) {
  using C = ExpOf<Real>;
  const Vec<Real> shifted = fma(x, splat<Real>(C::log2e), splat<Real>(C::shift));
  const Vec<Real> n = shifted - C::shift;
  Vec<Real> r = fma(n, splat<Real>(-C::ln2_high), x);
  r = fma(n, splat<Real>(-C::ln2_low), r);
  constexpr int degree = sizeof(C::q) / sizeof(Real) - 1;
  Vec<Real> q = splat<Real>(C::q[degree]);
#pragma GCC unroll 16
  for (int i = degree - 1; i >= 0; i--) q = fma(q, r, splat<Real>(C::q[i]));
  return {(Int<Real>)shifted - (Int<Real>)splat<Real>(C::shift), fma(q, r * r, r)};
}

// e^x for x <= -smallest.
template <class Real> ELMAN_INLINE Vec<Real> decay(Vec<Real> x) {
  using C = ExpOf<Real>;
  x = x < C::smallest ? splat<Real>(C::smallest) : x;
  const Reduced<Real> e = reduce<Real>(x);
  const Int<Real> half = e.n >> 1;  // two factors, so that a denormal result is rounded once
  const Vec<Real> a = power_of_two<Real>(half), b = power_of_two<Real>(e.n - half);
  return fma(e.expm1, a, a) * b;
}

// e^x; infinity where it overflows.
template <class Real> ELMAN_INLINE Vec<Real> exponential(Vec<Real> x) {
  return decay<Real>(x > -ExpOf<Real>::smallest ? splat<Real>(-ExpOf<Real>::smallest) : x);
}

// 1 / (1 + e^-x), or e^x / (1 + e^x) for x < 0, so that small values keep their precision.
template <class Real> ELMAN_INLINE Vec<Real> logistic(Vec<Real> x) {
  const Vec<Real> e = decay<Real>(minus_absolute<Real>(x));
  return (x < Real(0) ? e : splat<Real>(Real(1))) / (e + Real(1));
}

// tanh |x| = -m / (2 + m), m = e^(-2|x|) - 1: no cancellation at 0, 1 exactly when m rounds to -1.
template <class Real> ELMAN_INLINE Vec<Real> hyperbolic_tangent(Vec<Real> x) {
  using C = ExpOf<Real>;
  Vec<Real> size = minus_absolute<Real>(x);
  size = size < -C::tanh_is_one ? splat<Real>(-C::tanh_is_one) : size;
  const Reduced<Real> e = reduce<Real>(size + size);
  const Vec<Real> scale = power_of_two<Real>(e.n);
  const Vec<Real> m = fma(scale, e.expm1, scale - Real(1));
  return copy_sign<Real>(m / (m + Real(2)), x);
}

// log(1 + e) for e in [0, 1]: 1 + e = 2^k (1 + f), log(1 + f) = 2 atanh(s), s = f / (2 + f).
template <class Real> ELMAN_INLINE Vec<Real> log_one_plus(Vec<Real> e) {
  const auto upper = e > Real(0.41421356);
  const Vec<Real> f = upper ? (e - Real(1)) * Real(0.5) : e;
  const Vec<Real> s = f / (f + Real(2)), s2 = s * s;
  constexpr int terms = ExpOf<Real>::atanh_terms;
  Vec<Real> sum = splat<Real>(Real(2) / Real(2 * terms + 1));
#pragma GCC unroll 16
  for (int i = terms - 1; i >= 1; i--) sum = fma(sum, s2, splat<Real>(Real(2) / Real(2 * i + 1)));
  const Vec<Real> log = fma(s * s2, sum, s + s);
  return upper ? log + Real(0.6931471805599453) : log;
}

// x = 2^n m, m in [sqrt(1/2), sqrt(2)):  log x = n ln 2 + 2 atanh((m - 1) / (m + 1)).
template <class Real> ELMAN_INLINE Vec<Real> logarithm(Vec<Real> x) {
  using C = ExpOf<Real>;
  const Vec<Real> lift = power_of_two<Real>(Int<Real>{} + C::mantissa);
  const auto small = x < std::numeric_limits<Real>::min();  // denormal: made normal first
  const Vec<Real> normal = small ? x * lift : x;
  const Int<Real> one = (Int<Real>)splat<Real>(Real(1)), low = ((Int<Real>{} + 1) << C::mantissa) - 1;
  Vec<Real> m = (Vec<Real>)(((Int<Real>)normal & low) | one);
  Int<Real> n = ((Int<Real>)normal >> C::mantissa) - C::bias - (small ? Int<Real>{} + C::mantissa : Int<Real>{});
  const auto upper = m > Real(1.4142135623730951);
  m = upper ? m * Real(0.5) : m;
  n = upper ? n + 1 : n;
  const Vec<Real> f = m - Real(1), s = f / (f + Real(2)), s2 = s * s;
  constexpr int terms = C::atanh_terms;
  Vec<Real> sum = splat<Real>(Real(2) / Real(2 * terms + 1));
#pragma GCC unroll 16
  for (int i = terms - 1; i >= 1; i--) sum = fma(sum, s2, splat<Real>(Real(2) / Real(2 * i + 1)));
  // 2 s = f - s f: the first term without the rounding of s.
  const Vec<Real> tail = fma(-s, f, s * s2 * sum);
  const Vec<Real> k = __builtin_convertvector(n, Vec<Real>);
  const Vec<Real> log = fma(k, splat<Real>(C::ln2_high), f + fma(k, splat<Real>(C::ln2_low), tail));
  constexpr Real infinity = std::numeric_limits<Real>::infinity();
  const Vec<Real> edge =
      x == Real(0) ? splat<Real>(-infinity) : (x == infinity ? x : splat<Real>(std::numeric_limits<Real>::quiet_NaN()));
  return (x > Real(0)) & (x < infinity) ? log : edge;
}

template <class Real> ELMAN_INLINE Vec<Real> log_one_plus_exp(Vec<Real> x) {
  const Vec<Real> positive = x < Real(0) ? splat<Real>(Real(0)) : x;
  return positive + log_one_plus<Real>(decay<Real>(minus_absolute<Real>(x)));
}

}  // namespace elman::ELMAN_NS
