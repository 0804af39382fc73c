// What the filter of a hidden Markov model and its most probable path share: products of a row with a packed matrix.
#pragma once

#include <limits>

#include "kernels.h"
#include "parallel.h"
#include "product.h"

namespace elman::ELMAN_NS {

constexpr int64_t splits = 4;  // rows of a packed matrix are padded to a multiple of it

template <class T> constexpr T infinity = std::numeric_limits<T>::infinity();

// Vectors per row: whole tiles of 8, 4, 2 or 1.
template <class T> struct Width {
  int64_t K, tile, padded, rows;
  explicit Width(int64_t K) : K(K) {
    const int64_t n = (K + lanes<T> - 1) / lanes<T>;
    tile = n >= 8 ? 8 : n >= 3 ? 4 : n >= 2 ? 2 : 1;  // 3 too: what fits in 4 registers is packed as 4
    padded = (n + tile - 1) / tile * tile * lanes<T>;
    rows = (K + splits - 1) / splits * splits;
  }
};

// A step waits for the one before, which takes as long as some hundred multiply-adds.
template <class T>
int threads_for(const HmmInputs<T>& in, int threads) {
  return threads_for(in.B * in.T * std::max<int64_t>(in.K * in.K, 512), WorthAThread::multiply_adds, threads);
}

// [tile of columns][row][columns in the tile], `fill` outside: to(i, j) = a[i * by_row + j * by_column].
template <class T>
Buffer<T> pack(const T* a, int64_t by_row, int64_t by_column, Width<T> w, T fill) {
  Buffer<T> to = allocate<T>(w.rows * w.padded);
  const int64_t across = w.tile * lanes<T>;
  T* at = to.get();
  for (int64_t j0 = 0; j0 < w.padded; j0 += across)
    for (int64_t i = 0; i < w.rows; ++i)
      for (int64_t j = j0; j < j0 + across; ++j) *at++ = i < w.K && j < w.K ? a[i * by_row + j * by_column] : fill;
  return to;
}

// The algebra of max and +, in which a product is a step of the most probable path.
struct Best {
  template <class V> static ELMAN_INLINE V add(V top, V a, V x) { return join(a + x, top); }
  template <class V> static ELMAN_INLINE V join(V a, V b) { return a > b ? a : b; }
  template <class T> static constexpr T zero = -infinity<T>;
};

// y_j = sum_i x_i a_ij for one tile of columns; S interleaved partial sums hide the latency where there are few columns.
template <class Algebra, int C, int S, class T>
ELMAN_INLINE void product_tile(const T* __restrict a, const T* __restrict x, int64_t rows, Vec<T> (&y)[C]) {
  Vec<T> sum[S][C];
  for (int s = 0; s < S; ++s)
    for (int n = 0; n < C; ++n) sum[s][n] = splat<T>(Algebra::template zero<T>);
  for (int64_t i = 0; i < rows; i += S) {
#pragma GCC unroll 8
    for (int s = 0; s < S; ++s) {
      const Vec<T> xi = splat<T>(x[i + s]);
#pragma GCC unroll 8
      for (int n = 0; n < C; ++n) sum[s][n] = Algebra::add(sum[s][n], load<Vec<T>>(a + n * lanes<T>), xi);
      a += C * lanes<T>;
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < C; ++n) {
    for (int s = 1; s < S; ++s) sum[0][n] = Algebra::join(sum[0][n], sum[s][n]);
    y[n] = sum[0][n];
  }
}

template <class Algebra, int C, int S, class T>
void product_tiles(const T* a, const T* x, Width<T> w, T* y) {
  for (int64_t j = 0; j < w.padded; j += C * lanes<T>) {
    Vec<T> sum[C];
    product_tile<Algebra, C, S>(a + j * w.rows, x, w.rows, sum);
#pragma GCC unroll 8
    for (int n = 0; n < C; ++n) store(y + j + n * lanes<T>, sum[n]);
  }
}

template <class Algebra, class T>
ELMAN_INLINE void product(const T* a, const T* x, Width<T> w, T* y) {
  if (w.tile == 8) product_tiles<Algebra, 8, 1>(a, x, w, y);
  else if (w.tile == 4) product_tiles<Algebra, 4, 2>(a, x, w, y);
  else if (w.tile == 2) product_tiles<Algebra, 2, 4>(a, x, w, y);
  else product_tiles<Algebra, 1, 4>(a, x, w, y);
}

template <class T>
ELMAN_INLINE T largest_lane(Vec<T> v) {
  T r = v[0];
#pragma GCC unroll 16
  for (int i = 1; i < lanes<T>; ++i) r = v[i] > r ? v[i] : r;
  return r;
}

template <class T>
ELMAN_INLINE T largest(const T* x, int64_t padded) {
  Vec<T> top = load<Vec<T>>(x);
  for (int64_t k = lanes<T>; k < padded; k += lanes<T>) top = Best::join(load<Vec<T>>(x + k), top);
  return largest_lane<T>(top);
}

// One row of numbers, copied to a padded buffer.
template <class T>
ELMAN_INLINE void read(const T* from, int64_t K, T* to, int64_t padded, T fill) {
  int64_t k = 0;
  for (; k + lanes<T> <= K; k += lanes<T>) store(to + k, load<Vec<T>>(from + k));
  for (; k < padded; ++k) to[k] = k < K ? from[k] : fill;
}

}  // namespace elman::ELMAN_NS
