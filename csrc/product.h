// The register tile of every matrix product, and the packing it reads.
//
//   acc[m][n] = fma(x[m][k], w[k][n], acc[m][n])   for k = 0, 1, 2, ...
//
// One lane is one output element, and its sum runs over ascending k, one multiply-add after another, from whatever
// the accumulator holds at the start. So tiles of any shape, and a sum that is stored and continued, give the same bits.
#pragma once

#include <algorithm>
#include <cstdint>

#include "buffers.h"
#include "narrow.h"
#include "simd.h"

namespace elman::ELMAN_NS {

// R rows of x by C blocks of G vectors; w is [block][k][G][lanes], `block` elements apart.
template <int R, int C, int G, class Real>
ELMAN_INLINE void tile(Vec<Real> (&acc)[R][C * G], const Real* __restrict w, int64_t block, const Real* __restrict x,
                       int64_t ldx, int64_t K) {
  constexpr int L = lanes<Real>;
  for (int64_t k = 0; k < K; ++k) {
    Vec<Real> v[C * G];
#pragma GCC unroll 16
    for (int n = 0; n < C * G; ++n) v[n] = widen(w + (n / G) * block + (n % G) * L);
#pragma GCC unroll 16
    for (int m = 0; m < R; ++m) {
      const Vec<Real> a = splat(x[m * ldx + k]);
#pragma GCC unroll 16
      for (int n = 0; n < C * G; ++n) acc[m][n] = fma(a, v[n], acc[m][n]);
    }
    w += G * L;
  }
}

// The same of weights that have to be widened, one vector after the other: all at once would not fit into the registers.
template <int R, int C, int G>
ELMAN_INLINE void tile(Vec<float> (&acc)[R][C * G], const int8_t* __restrict w, int64_t block, const float* __restrict x,
                       int64_t ldx, int64_t K) {
  constexpr int L = lanes<float>;
  for (int64_t k = 0; k < K; ++k, w += G * L) {
    Vec<float> a[R];
#pragma GCC unroll 16
    for (int m = 0; m < R; ++m) a[m] = splat(x[m * ldx + k]);
#pragma GCC unroll 16
    for (int n = 0; n < C * G; ++n) {
      const Vec<float> v = widen(w + (n / G) * block + (n % G) * L);
#pragma GCC unroll 16
      for (int m = 0; m < R; ++m) acc[m][n] = fma(a[m], v, acc[m][n]);
    }
  }
}

// The same of pairs; the last one may have a first number only.
template <int R, int C, int G>
ELMAN_INLINE void tile(Vec<float> (&acc)[R][C * G], const Bfloat16* __restrict w, int64_t block, const float* __restrict x,
                       int64_t ldx, int64_t K) {
  constexpr int L = lanes<float>;
  const auto add = [&](int64_t k, auto second) {
    Vec<float> a[R], b[R];
#pragma GCC unroll 16
    for (int m = 0; m < R; ++m) {
      a[m] = splat(x[m * ldx + k]);
      if (second) b[m] = splat(x[m * ldx + k + 1]);
    }
#pragma GCC unroll 16
    for (int n = 0; n < C * G; ++n) {
      const Int<float> pairs = load<Int<float>>(w + (n / G) * block + (n % G) * 2 * L);
#pragma GCC unroll 16
      for (int m = 0; m < R; ++m) {
        acc[m][n] = fma(a[m], first_of(pairs), acc[m][n]);
        if (second) acc[m][n] = fma(b[m], second_of(pairs), acc[m][n]);
      }
    }
    w += 2 * G * L;
  };
  int64_t k = 0;
  for (; k + 1 < K; k += 2) add(k, std::true_type{});
  if (k < K) add(k, std::false_type{});
}

// Rows of a tile of two vectors: their sums, the two vectors and a number of x fit into 16 registers, or the 32 of AVX-512.
constexpr int rows_by_two = vector_bytes == 64 ? 12 : 6;

// Rows [r, r + count) of a block from `rows`, in pieces of at most R: f(std::integral_constant<int, rows>, first).
template <int R, class F>
ELMAN_INLINE void row_tiles(int64_t first, int64_t end, const F& f) {
  while (end - first >= R) {
    f(std::integral_constant<int, R>{}, first);
    first += R;
  }
  if constexpr (R > 1) row_tiles<R - 1>(first, end, f);
}

template <class Real>
ELMAN_INLINE Vec<Real> load_some(const Real* p, int64_t count) {
  if (count >= lanes<Real>) return load<Vec<Real>>(p);
#if defined(__AVX512F__)
  return load_first(p, int(count));
#endif
  Vec<Real> v{};
  std::memcpy(&v, p, size_t(count) * sizeof(Real));
  return v;
}

template <class Real>
ELMAN_INLINE void store_some(Real* p, Vec<Real> v, int64_t count) {
  if (count >= lanes<Real>) return store(p, v);
#if defined(__AVX512F__)
  return store_first(p, v, int(count));
#endif
  std::memcpy(p, &v, size_t(count) * sizeof(Real));
}

// v[i][j] becomes v[j][i]. Each round deals the first and the second half of the vectors like two hands of cards; after as many
// rounds as an index has bits, its bits and those of the lane have changed places.
template <class Real>
ELMAN_INLINE void transpose(Vec<Real> (&v)[lanes<Real>]) {
  constexpr int L = lanes<Real>;
#pragma GCC unroll 8
  for (int round = 1; round < L; round *= 2) {
    Vec<Real> dealt[L];
#pragma GCC unroll 16
    for (int i = 0; i < L / 2; ++i) {
      dealt[2 * i] = interleave<0>(v[i], v[i + L / 2]);
      dealt[2 * i + 1] = interleave<L / 2>(v[i], v[i + L / 2]);
    }
    std::memcpy(&v, &dealt, sizeof v);
  }
}

// Transposes `count` rows of w, at most `lanes`, into lanes: to[k * step + l] = w[l * ldw + k], zero for l >= count.
template <class Real>
void pack_lanes(const Real* w, int64_t ldw, int64_t count, int64_t K, Real* to, int64_t step) {
  constexpr int64_t L = lanes<Real>;
  for (int64_t k = 0; k < K; k += L) {
    Vec<Real> v[L];
    for (int64_t l = 0; l < L; ++l) v[l] = l < count ? load_some(w + l * ldw + k, K - k) : Vec<Real>{};
    transpose<Real>(v);
    for (int64_t i = 0; i < std::min(L, K - k); ++i) store(to + (k + i) * step, v[i]);
  }
}

}  // namespace elman::ELMAN_NS
