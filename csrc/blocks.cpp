#include "blocks.h"

namespace elman::ELMAN_NS {
namespace {

// out[m][n] += x[m] w[n]; the sums start from init + m * step + n * lanes if init is given, the last of each panel from
// shared + panel * lanes if that is, else from out. The sum of a group that has a scale is multiplied by it and added.
template <int R, int C, int G, class Real, class Weight>
__attribute__((noinline)) void run_tile(Packed<Real, Weight> packed, int64_t depth, const Real* x, int64_t ldx, int64_t K,
                                        const Real* init, int64_t step, const Real* shared, Real* out, int64_t ldo) {
  constexpr int L = lanes<Real>;
  Vec<Real> acc[R][C * G];
#pragma GCC unroll 16
  for (int m = 0; m < R; ++m)
#pragma GCC unroll 16
    for (int n = 0; n < C * G; ++n)
      acc[m][n] = load<Vec<Real>>(shared && n % G == G - 1 ? shared + n / G * L : init + m * step + n * L);
  const int64_t block = depth * G * L;
  if constexpr (has_scales<Weight>) {
    const int64_t scales = (depth + group - 1) / group * G * L;
    for (int64_t k = 0; k < K; k += group, packed.scales += G * L) {
      Vec<Real> part[R][C * G] = {};
      tile<R, C, G>(part, packed.w + k * G * L, block, x + k, ldx, std::min(group, K - k));
#pragma GCC unroll 16
      for (int n = 0; n < C * G; ++n) {
        const Vec<Real> scale = load<Vec<Real>>(packed.scales + n / G * scales + n % G * L);
#pragma GCC unroll 16
        for (int m = 0; m < R; ++m) acc[m][n] = fma(part[m][n], scale, acc[m][n]);
      }
    }
  } else {
    tile<R, C, G>(acc, packed.w, block, x, ldx, K);
  }
#pragma GCC unroll 16
  for (int m = 0; m < R; ++m)
#pragma GCC unroll 16
    for (int n = 0; n < C * G; ++n) store(out + m * ldo + n * L, acc[m][n]);
}

template <int R, int C, int G, class... Args>
ELMAN_INLINE void run_rows(int64_t rows, Args... args) {
  if (rows == R) run_tile<R, C, G>(args...);
  else if constexpr (R > 1) run_rows<R - 1, C, G>(rows, args...);
}

// The first V vectors of a pair of columns
template <int R, int V, class Real>
__attribute__((noinline)) void outer_tile(int64_t rows, const Real* g, const Real* x, Real* out, int64_t ldo) {
  constexpr int L = lanes<Real>;
  Vec<Real> acc[R][V];
#pragma GCC unroll 16
  for (int m = 0; m < R; ++m)
    for (int n = 0; n < V; ++n) acc[m][n] = load<Vec<Real>>(out + m * ldo + n * L);
  for (int64_t i = 0; i < rows; ++i, g += R, x += 2 * L) {
    Vec<Real> v[V];
    for (int n = 0; n < V; ++n) v[n] = load<Vec<Real>>(x + n * L);
#pragma GCC unroll 16
    for (int m = 0; m < R; ++m) {
      const Vec<Real> a = splat(g[m]);
      for (int n = 0; n < V; ++n) acc[m][n] = fma(a, v[n], acc[m][n]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < R; ++m)
    for (int n = 0; n < V; ++n) store(out + m * ldo + n * L, acc[m][n]);
}

}  // namespace

// At most half of a small L1 cache of weights at a time, in whole groups, if they are used more than once.
template <int C, int G, class Real, class Weight>
void run_blocks(Packed<Real, Weight> packed, int64_t j, int64_t first, int64_t end, const Real* x, int64_t ldx, int64_t K,
                const Start<Real>* start, Real* out, int64_t ldo) {
  constexpr int L = lanes<Real>;
  constexpr int R = C <= panels_for_more_rows<G> ? tile_rows<G> : 2;
  constexpr int64_t least = has_scales<Weight> ? group : 16;
  const int64_t packed_K = packed_depth<Weight>(K);
  const int64_t rows = end - first, pieces = (rows + R - 1) / R;
  const int64_t fits = 16384 / (C * G * L * int64_t(sizeof(Weight)));
  const int64_t some = std::is_same_v<Real, Weight> ? std::max(fits, least) : std::max(fits / least, int64_t(1)) * least;
  const int64_t depth = pieces <= 1 || K <= some + some / 2 ? K : some;
  const int64_t groups = (K + group - 1) / group;
  for (int64_t k = 0; k < K; k += depth, start = nullptr)
    for (int64_t i = 0; i < pieces; ++i) {
      const int64_t a = first + rows * i / pieces, b = first + rows * (i + 1) / pieces;
      Real* to = out + (a - first) * ldo;
      const Packed<Real, Weight> from{packed.w + (j * packed_K + k) * G * L,
                                      has_scales<Weight> ? packed.scales + (j * groups + k / group) * G * L : nullptr};
      run_rows<R, C, G>(b - a, from, packed_K, x + a * ldx + k, ldx, std::min(depth, K - k),
                        start ? start->u + a * start->stride + j * G * L : (const Real*)to, start ? start->stride : ldo,
                        start && start->shared ? start->shared + j * L : nullptr, to, ldo);
    }
}

template <class Real>
void pack_outer(int64_t rows, const Real* g, int64_t ldg, int64_t first, int64_t end, Real* packed_g) {
  for (int64_t i = 0; i < rows; ++i, g += ldg)
    row_tiles<rows_by_two>(
        first, end, [&](auto R, int64_t m) { std::memcpy(packed_g + (m - first) * rows + i * R, g + m, R * sizeof(Real)); });
}

template <class Real>
void add_outer(int64_t rows, const Real* packed_g, int64_t first, int64_t end, const Real* x, int64_t capacity, int64_t columns,
               Real* out, int64_t ldo) {
  constexpr int L = lanes<Real>;
  for (int64_t n = 0; n < columns; n += 2 * L)
    row_tiles<rows_by_two>(first, end, [&](auto R, int64_t m) {
      const auto add = columns - n > L ? outer_tile<R, 2, Real> : outer_tile<R, 1, Real>;
      add(rows, packed_g + (m - first) * rows, x + capacity * n, out + m * ldo + n, ldo);
    });
}

#define ELMAN_STORED(C, G, Real, Weight)                                                                         \
  template void run_blocks<C, G>(Packed<Real, Weight>, int64_t, int64_t, int64_t, const Real*, int64_t, int64_t, \
                                 const Start<Real>*, Real*, int64_t);
#define ELMAN_SHAPE(C, G)             \
  ELMAN_STORED(C, G, float, float)    \
  ELMAN_STORED(C, G, float, Bfloat16) \
  ELMAN_STORED(C, G, float, int8_t)   \
  ELMAN_STORED(C, G, double, double)
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

#define ELMAN_OUTER(Real)                                                           \
  template void pack_outer(int64_t, const Real*, int64_t, int64_t, int64_t, Real*); \
  template void add_outer(int64_t, const Real*, int64_t, int64_t, const Real*, int64_t, int64_t, Real*, int64_t);
ELMAN_OUTER(float)
ELMAN_OUTER(double)

}  // namespace elman::ELMAN_NS
