// What a normalisation needs of a row: sums that do not depend on the rows beside it.
#pragma once

#include <cmath>

#include "product.h"

namespace elman::ELMAN_NS {

// The sum over units [0, H) of f(n), the vector of units n, n + 1, ...: lane by lane, then the lanes in order. Lanes past H do
// not count.
template <class T, class F>
ELMAN_INLINE T sum_units(int64_t H, const F& f) {
  constexpr int L = lanes<T>;
  Vec<T> total{};
  int64_t n = 0;
  for (; n + L <= H; n += L) total = total + f(n);
  if (n < H) {
    Vec<T> last = f(n);
    for (int64_t l = H - n; l < L; ++l) last[l] = T(0);
    total = total + last;
  }
  T s = total[0];
  for (int l = 1; l < L; ++l) s += total[l];
  return s;
}

template <class T>
constexpr T norm_eps = T(1e-5);  // of the norms inside a cell; cells/norm.py has the same

template <class T>
struct Moments {
  T mean, scale;  // scale = 1 / sqrt(variance + eps)
};

// Of G numbers per unit: value(n, g) is the vector of the g-th of units n, n + 1, ...
template <class T, class F>
ELMAN_INLINE Moments<T> moments(int64_t H, int G, T eps, const F& value) {
  const T mean = sum_units<T>(H, [&](int64_t n) {
    Vec<T> v = value(n, 0);
    for (int g = 1; g < G; ++g) v = v + value(n, g);
    return v;
  }) / T(H * G);
  const T square = sum_units<T>(H, [&](int64_t n) {
    Vec<T> sum{};
    for (int g = 0; g < G; ++g) {
      const Vec<T> v = value(n, g) - mean;
      sum = fma(v, v, sum);
    }
    return sum;
  }) / T(H * G);
  return {mean, T(1) / std::sqrt(square + eps)};
}

}  // namespace elman::ELMAN_NS
