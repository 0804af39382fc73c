// What a normalisation needs of a row: sums that do not depend on the rows beside it.
#pragma once

#include <array>
#include <cmath>

#include "product.h"

namespace elman::ELMAN_NS {

// N sums over units [0, H), each of G functions: f(n, i) is the vector of units n, n + 1, ... of the i-th, G of them for the first
// sum, G for the second. Lane by lane, then over the lanes; lanes past H do not count.
template <int N, int G, class Real, class F>
ELMAN_INLINE std::array<Real, N> sums_over_units(int64_t H, const F& f) {
  constexpr int L = lanes<Real>;
  Vec<Real> total[N * G] = {};
  int64_t n = 0;
  for (; n + L <= H; n += L)
#pragma GCC unroll 8
    for (int i = 0; i < N * G; ++i) total[i] = total[i] + f(n, i);
  if (n < H)
#pragma GCC unroll 8
    for (int i = 0; i < N * G; ++i) {
      Real last[L];
      store(last, f(n, i));
      total[i] = total[i] + load_some(last, H - n);
    }
  std::array<Real, N> sums;
#pragma GCC unroll 2
  for (int i = 0; i < N; ++i) {
#pragma GCC unroll 4
    for (int g = 1; g < G; ++g) total[i * G] = total[i * G] + total[i * G + g];
    sums[i] = sum_lanes<Real>(total[i * G]);
  }
  return sums;
}

template <class Real>
constexpr Real norm_eps = Real(1e-5);  // of the norms inside a cell; cells/norm.py has the same

template <class Real>
struct Moments {
  Real mean, scale;  // scale = 1 / sqrt(variance + eps)
};

// Of G numbers per unit: value(n, g) is the vector of the g-th of units n, n + 1, ...
template <int G, class Real, class F>
ELMAN_INLINE Moments<Real> moments(int64_t H, Real eps, const F& value) {
  const Real mean = sums_over_units<1, G, Real>(H, value)[0] / Real(H * G);
  const auto squares = [&](int64_t n, int g) {
    const Vec<Real> v = value(n, g) - mean;
    return Vec<Real>(v * v);
  };
  return {mean, Real(1) / std::sqrt(sums_over_units<1, G, Real>(H, squares)[0] / Real(H * G) + eps)};
}

// The backward pass of x = (s - mean) * scale, G numbers per unit: f(n, g, gs) with gs = scale * (v - mean(v) - x * mean(v * x)),
// where v(n, g) is the gradient of x(n, g).
template <int G, class Real, class V, class X, class F>
ELMAN_INLINE void moments_back(int64_t H, Real scale, const V& v, const X& x, const F& f) {
  const auto sums =
      sums_over_units<2, G, Real>(H, [&](int64_t n, int i) { return i < G ? v(n, i) : Vec<Real>(v(n, i - G) * x(n, i - G)); });
  const Real first = sums[0] / Real(H * G), second = sums[1] / Real(H * G);
  for (int64_t n = 0; n < H; n += lanes<Real>)
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) f(n, g, Vec<Real>((v(n, g) - first - x(n, g) * second) * scale));
}

}  // namespace elman::ELMAN_NS
