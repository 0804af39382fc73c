#include "blocks.h"

namespace elman::ELMAN_NS {
namespace {

// out[m][n] += x[m] w[n]; the sums start from init[m * G + g] (block c at + c * step) if given, else from out.
template <int R, int C, int G, class T>
__attribute__((noinline)) void run_tile(const T* w, int64_t block, const T* x, int64_t ldx, int64_t K, const T* const* init,
                                        int64_t step, T* out, int64_t ldo) {
  constexpr int L = lanes<T>;
  Vec<T> acc[R][C * G];
#pragma GCC unroll 16
  for (int m = 0; m < R; ++m)
#pragma GCC unroll 16
    for (int n = 0; n < C * G; ++n)
      acc[m][n] = load<Vec<T>>(init ? init[m * G + n % G] + (n / G) * step : out + m * ldo + n * L);
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

}  // namespace

// At most half of a small L1 cache of weights at a time, if they are used more than once.
template <int C, int G, class T>
void run_blocks(const T* packed, int64_t j, int64_t first, int64_t end, const T* x, int64_t ldx, int64_t K,
                const Start<T>* start, T* out, int64_t ldo) {
  constexpr int L = lanes<T>;
  constexpr int R = C <= many<G> ? tall<G> : 2;
  const int64_t rows = end - first, pieces = (rows + R - 1) / R;
  const int64_t some = std::max<int64_t>(16384 / (C * G * vector_bytes), 16);
  const int64_t depth = pieces <= 1 || K <= some + some / 2 ? K : some;
  for (int64_t k = 0; k < K; k += depth, start = nullptr)
    for (int64_t i = 0; i < pieces; ++i) {
      const int64_t a = first + rows * i / pieces, b = first + rows * (i + 1) / pieces;
      const T* from[R * G];
      if (start)
        for (int64_t m = 0; m < b - a; ++m)
          for (int g = 0; g < G; ++g) from[m * G + g] = start->at(a + m, g, G) + j * start->block;
      run_rows<R, C, G, T>(b - a, packed + (j * K + k) * G * L, K * G * L, x + a * ldx + k, ldx, std::min(depth, K - k),
                           start ? from : nullptr, start ? start->block : 0, out + (a - first) * ldo, ldo);
    }
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
ELMAN_SHAPE(2, 4)
ELMAN_SHAPE(1, 4)

}  // namespace elman::ELMAN_NS
