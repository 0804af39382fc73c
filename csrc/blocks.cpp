#include "blocks.h"

namespace elman::ELMAN_NS {
namespace {

// out[m][n] += x[m] w[n]; the sums start from init + m * step + n * lanes if init is given, the last of each panel from
// shared + panel * lanes if that is, else from out.
template <int R, int C, int G, class T>
__attribute__((noinline)) void run_tile(const T* w, int64_t block, const T* x, int64_t ldx, int64_t K, const T* init,
                                        int64_t step, const T* shared, T* out, int64_t ldo) {
  constexpr int L = lanes<T>;
  Vec<T> acc[R][C * G];
#pragma GCC unroll 16
  for (int m = 0; m < R; ++m)
#pragma GCC unroll 16
    for (int n = 0; n < C * G; ++n)
      acc[m][n] = load<Vec<T>>(shared && n % G == G - 1 ? shared + n / G * L : init + m * step + n * L);
  tile<R, C, G>(acc, w, block, x, ldx, K);
#pragma GCC unroll 16
  for (int m = 0; m < R; ++m)
#pragma GCC unroll 16
    for (int n = 0; n < C * G; ++n) store(out + m * ldo + n * L, acc[m][n]);
}

template <int R, int C, int G, class T, class... Args>
ELMAN_INLINE void run_rows(int64_t rows, Args... args) {
  if (rows == R) run_tile<R, C, G, T>(args...);
  else if constexpr (R > 1) run_rows<R - 1, C, G, T>(rows, args...);
}

template <int R, class T>
__attribute__((noinline)) void outer_tile(int64_t rows, const T* g, const T* x, T* out, int64_t ldo) {
  constexpr int L = lanes<T>;
  Vec<T> acc[R][2];
#pragma GCC unroll 16
  for (int m = 0; m < R; ++m)
    for (int n = 0; n < 2; ++n) acc[m][n] = load<Vec<T>>(out + m * ldo + n * L);
  for (int64_t i = 0; i < rows; ++i, g += R, x += 2 * L) {
    const Vec<T> v[2] = {load<Vec<T>>(x), load<Vec<T>>(x + L)};
#pragma GCC unroll 16
    for (int m = 0; m < R; ++m) {
      const Vec<T> a = splat(g[m]);
      for (int n = 0; n < 2; ++n) acc[m][n] = fma(a, v[n], acc[m][n]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < R; ++m)
    for (int n = 0; n < 2; ++n) store(out + m * ldo + n * L, acc[m][n]);
}

}  // namespace

// At most half of a small L1 cache of weights at a time, if they are used more than once.
template <int C, int G, class T>
void run_blocks(const T* packed, int64_t j, int64_t first, int64_t end, const T* x, int64_t ldx, int64_t K,
                const Start<T>* start, T* out, int64_t ldo) {
  constexpr int L = lanes<T>;
  constexpr int R = C <= panels_for_more_rows<G> ? tile_rows<G> : 2;
  const int64_t rows = end - first, pieces = (rows + R - 1) / R;
  const int64_t some = std::max<int64_t>(16384 / (C * G * vector_bytes), 16);
  const int64_t depth = pieces <= 1 || K <= some + some / 2 ? K : some;
  for (int64_t k = 0; k < K; k += depth, start = nullptr)
    for (int64_t i = 0; i < pieces; ++i) {
      const int64_t a = first + rows * i / pieces, b = first + rows * (i + 1) / pieces;
      T* to = out + (a - first) * ldo;
      run_rows<R, C, G, T>(b - a, packed + (j * K + k) * G * L, K * G * L, x + a * ldx + k, ldx, std::min(depth, K - k),
                           start ? start->u + a * start->stride + j * G * L : (const T*)to, start ? start->stride : ldo,
                           start && start->shared ? start->shared + j * L : nullptr, to, ldo);
    }
}

template <class T>
void pack_outer(int64_t rows, const T* g, int64_t ldg, int64_t first, int64_t end, T* packed_g) {
  for (int64_t i = 0; i < rows; ++i, g += ldg)
    row_tiles<6>(first, end, [&](auto R, int64_t m) { std::memcpy(packed_g + (m - first) * rows + i * R, g + m, R * sizeof(T)); });
}

template <class T>
void add_outer(int64_t rows, const T* packed_g, int64_t first, int64_t end, const T* x, int64_t capacity, int64_t panels, T* out,
               int64_t ldo) {
  constexpr int P = 2 * lanes<T>;
  for (int64_t j = 0; j < panels; ++j)
    row_tiles<6>(first, end, [&](auto R, int64_t m) {
      outer_tile<R, T>(rows, packed_g + (m - first) * rows, x + j * capacity * P, out + m * ldo + j * P, ldo);
    });
}

#define ELMAN_SHAPE(C, G)                                                                                            \
  template void run_blocks<C, G>(const float*, int64_t, int64_t, int64_t, const float*, int64_t, int64_t,            \
                                 const Start<float>*, float*, int64_t);                                              \
  template void run_blocks<C, G>(const double*, int64_t, int64_t, int64_t, const double*, int64_t, int64_t,          \
                                 const Start<double>*, double*, int64_t);
ELMAN_SHAPE(8, 1)
ELMAN_SHAPE(4, 1)
ELMAN_SHAPE(2, 1)
ELMAN_SHAPE(1, 1)
ELMAN_SHAPE(4, 2)
ELMAN_SHAPE(2, 2)
ELMAN_SHAPE(1, 2)
ELMAN_SHAPE(4, 3)
ELMAN_SHAPE(2, 3)
ELMAN_SHAPE(1, 3)


#define ELMAN_OUTER(T)                                                                                               \
  template void pack_outer(int64_t, const T*, int64_t, int64_t, int64_t, T*);                                        \
  template void add_outer(int64_t, const T*, int64_t, int64_t, const T*, int64_t, int64_t, T*, int64_t);
ELMAN_OUTER(float)
ELMAN_OUTER(double)

}  // namespace elman::ELMAN_NS
