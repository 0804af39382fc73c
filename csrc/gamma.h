// What the logarithm of the gamma function and its derivative have in common, in double.
#pragma once
#include <cmath>

#include "angles.h"

namespace elman::ELMAN_NS {

// (c[0] - x (c[1] - x (c[2] - ...))): the asymptotic series of both functions below alternate.
template <int N>
ELMAN_INLINE Vec<double> alternating(const double (&c)[N], Vec<double> x) {
  Vec<double> sum = splat<double>(c[N - 1]);
#pragma GCC unroll 16
  for (int i = N - 2; i >= 0; --i) sum = c[i] - x * sum;
  return sum;
}

// log G(v) - (v - 1/2) log v + v - log(2 pi) / 2, by Stirling's series, and log v - psi(v), its derivative's: v >= 8.
ELMAN_INLINE Vec<double> stirling(Vec<double> v) {
  constexpr double c[] = {1. / 12, 1. / 360, 1. / 1260, 1. / 1680, 1. / 1188, 691. / 360360, 1. / 156, 3617. / 122400};
  const Vec<double> x = 1.0 / v;
  return x * alternating(c, x * x);
}
ELMAN_INLINE Vec<double> log_minus_digamma(Vec<double> v) {
  constexpr double c[] = {1. / 12, 1. / 120, 1. / 252, 1. / 240, 1. / 132, 691. / 32760, 1. / 12, 3617. / 8160};
  const Vec<double> x = 1.0 / v, x2 = x * x;
  return 0.5 * x + x2 * alternating(c, x2);
}

// The derivative of log gamma: x is brought above 8; below 0 by reflection.
inline double digamma(double x) {
  if (x == 0) return std::copysign(std::numeric_limits<double>::infinity(), -x);
  if (x < 0) {
    if (x == std::floor(x)) return std::numeric_limits<double>::quiet_NaN();
    constexpr double pi = 3.14159265358979323846;
    const Vec<double> angle = splat<double>(pi * (x - std::trunc(x)));
    return digamma(1 - x) - pi * (cosine_in_double(angle) / sine_in_double(angle))[0];
  }
  double sum = 0;
  for (; x < 8; x += 1) sum -= 1 / x;
  const Vec<double> v = splat<double>(x);
  return sum + (logarithm<double>(v) - log_minus_digamma(v))[0];
}

}  // namespace elman::ELMAN_NS
