// The product of some rows with packed weights, a few blocks of columns at a time: what the gated loops and a stream run.
//
// Packed weights are [panel][k][G][lanes]: G vectors of columns side by side.
#pragma once

#include "product.h"

namespace elman::ELMAN_NS {

// How many panels are taken at once for 1, 2 or more rows: about 8 independent sums keep the multiply-adds busy.
template <int G> constexpr int panels_for_one_row = G == 1 ? 8 : 4;
template <int G> constexpr int panels_for_two_rows = G == 1 ? 4 : 2;
template <int G> constexpr int panels_for_more_rows = G == 1 ? 2 : 1;

// Rows of a tile: its sums, a panel and one number of x have to fit into 16 registers, or the 32 of AVX-512. (Of 12 rows by 2
// vectors, or 8 by 3, an LSTM was no faster there, and a GRU 3 to 4 % slower; why was not separated.)
template <int G> constexpr int tile_rows = G == 3 ? 4 : vector_bytes == 64 ? 8 : 6;

// The gates of a block of units lie in panels of so many vectors. (4 to 6 rows by 2 vectors, or 3 to 4 by 3, run at the full
// speed of the multiply-adds; of 4 vectors only 3 rows would fit into 16 registers.)
template <int G> constexpr int panel = G == 4 ? 2 : G;

// Gates [gate, gate + G) of w (gates * H, K) as [block of units][G / panel][k][panel][lanes]; lanes past H are zero.
template <int G, class Real>
Buffer<Real> pack_gates(const Real* w, int64_t H, int64_t K, int gate) {
  constexpr int64_t L = lanes<Real>, P = panel<G>;
  const int64_t blocks = (H + L - 1) / L;
  auto packed = allocate<Real>(blocks * K * G * L);
  for (int64_t j = 0; j < blocks; ++j)
    for (int64_t g = 0; g < G; ++g)
      pack_lanes(w + ((gate + g) * H + j * L) * K, K, std::min(L, H - j * L), K,
                 packed.get() + (j * G + g / P * P) * K * L + g % P * L, P * L);
  return packed;
}

// Where sums start: panel j of a row at u + row * stride + j * G * lanes. If `shared` is not null, the last vector of every
// panel starts there instead, at + j * lanes, for all rows.
template <class Real>
struct Start {
  const Real* u;
  int64_t stride;
  const Real* shared = nullptr;
};

// Packed weights, and their scales, [panel][group][G][lanes], where they have some (narrow.h).
template <class Real, class Weight = Real>
struct Packed {
  const Weight* w;
  const Real* scales = nullptr;
};

// out[m][c][g] = start + sum over k of x[m][k] w[k] for rows [first, end) and C panels from panel j on; from what `out` holds
// if start is null. Rows of x and of out are ldx and ldo apart; out begins at row `first`.
template <int C, int G, class Real, class Weight>
void run_blocks(Packed<Real, Weight> packed, int64_t j, int64_t first, int64_t end, const Real* x, int64_t ldx, int64_t K,
                const Start<Real>* start, Real* out, int64_t ldo);

// f(std::integral_constant<int, C>, j) for the panels [left, right): C at once, the rest by fewer.
template <int C, class F>
ELMAN_INLINE int64_t each_blocks(int64_t left, int64_t right, const F& f) {
  for (; left + C <= right; left += C) f(std::integral_constant<int, C>{}, left);
  if constexpr (C > 1) return each_blocks<C / 2>(left, right, f);
  return left;
}

template <int G, class F>
ELMAN_INLINE int64_t each_blocks_for(int64_t rows, int64_t left, int64_t right, const F& f) {
  if (rows == 1) return each_blocks<panels_for_one_row<G>>(left, right, f);
  if (rows == 2) return each_blocks<panels_for_two_rows<G>>(left, right, f);
  return each_blocks<panels_for_more_rows<G>>(left, right, f);
}

// The same for all panels [left, right) and rows [0, rows) of x: out (rows, panels * G * lanes).
template <int G, class Real, class Weight>
void run_panels(Packed<Real, Weight> packed, int64_t left, int64_t right, int64_t rows, const Real* x, int64_t ldx, int64_t K,
                const Start<Real>* start, Real* out, int64_t ldo) {
  each_blocks_for<G>(rows, left, right, [&](auto C, int64_t j) {
    run_blocks<C, G>(packed, j, 0, rows, x, ldx, K, start, out + j * G * lanes<Real>, ldo);
  });
}
template <int G, class Real>
void run_panels(const Real* packed, int64_t left, int64_t right, int64_t rows, const Real* x, int64_t ldx, int64_t K,
                const Start<Real>* start, Real* out, int64_t ldo) {
  run_panels<G>(Packed<Real>{packed}, left, right, rows, x, ldx, K, start, out, ldo);
}

// The same for columns that are packed in pairs of vectors, the last one by itself if their number is odd: pairs [left, right) of
// them, that one counted as a pair.
template <class Real>
void run_pairs(const Real* packed, int64_t left, int64_t right, int64_t columns, int64_t rows, const Real* x, int64_t ldx,
               int64_t K, const Start<Real>* start, Real* out, int64_t ldo) {
  constexpr int64_t P = 2 * lanes<Real>;
  const int64_t whole = (columns + lanes<Real> - 1) / P, n = whole * P;
  run_panels<2>(packed, left, std::min(right, whole), rows, x, ldx, K, start, out, ldo);
  if (left > whole || right <= whole) return;
  const Start<Real> rest{start ? start->u + n : nullptr, start ? start->stride : 0};
  run_panels<1>(packed + n * K, 0, 1, rows, x, ldx, K, start ? &rest : nullptr, out + n, ldo);
}

// out[m][n] += sum over i of g[i][m] x[i][n] for i in [0, rows), m in [first, end) and n in [0, columns): what rows add to the
// gradient of a matrix. x is [pair of vectors of columns][capacity][2][lanes]; packed_g is what pack_outer makes of g,
// rows_by_two of its columns at a time.
template <class Real>
void pack_outer(int64_t rows, const Real* g, int64_t ldg, int64_t first, int64_t end, Real* packed_g);
template <class Real>
void add_outer(int64_t rows, const Real* packed_g, int64_t first, int64_t end, const Real* x, int64_t capacity, int64_t columns,
               Real* out, int64_t ldo);

}  // namespace elman::ELMAN_NS
