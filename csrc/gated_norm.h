// The normalisations inside a gated cell, of its gates' sums and of the LSTM's c on its way to h, forward and backward.
#pragma once

#include "gated_layout.h"
#include "math.h"
#include "norm.h"

namespace elman::ELMAN_NS {

// How many gates are normalised together; the GRU's candidate is normalised by itself.
template <class Cell>
constexpr int normed_together = Cell::gates - (Cell::shared_last ? 1 : Cell::second);

// What the backward pass needs of a row: the normalised value of gate g at values + g * stride, the scale of the gates that are
// normalised together at scales + the first of them. Null in inference.
template <class Real>
struct SavedNorm {
  Real* values;
  Real* scales;
  int64_t stride;
};

// The last cache line of what was saved of a row: at a the scale of gates [a, b) of W h', at gates + a that of U x; at 1 and 2 the
// LSTM's mean and scale of c.
template <class Real>
ELMAN_INLINE Real* saved_scales(Real* save, int64_t saved_row) {
  return save + saved_row - cache_line / sizeof(Real);
}

// Gates [a, b) of a row, gate g of block j at row + at(j, g): start(j, g) + gain * (what is there - mean) * scale. The gains of
// a gate are `stride` apart from those of the next.
template <int a, int b, class Real, class At, class From>
ELMAN_INLINE void normalise(int64_t H, Real* row, const At& at, const From& start, const Real* gain, int64_t stride,
                            SavedNorm<Real> save) {
  if constexpr (a < b) {
    constexpr int L = lanes<Real>;
    const Moments<Real> m =
        moments<b - a>(H, norm_eps<Real>, [&](int64_t n, int g) { return load<Vec<Real>>(row + at(n / L, a + g)); });
    if (save.scales) save.scales[a] = m.scale;
    for (int64_t j = 0; j * L < H; ++j)
#pragma GCC unroll 4
      for (int g = a; g < b; ++g) {
        Real* s = row + at(j, g);
        const Vec<Real> v = (load<Vec<Real>>(s) - m.mean) * m.scale;
        if (save.values) store(save.values + g * save.stride + j * L, v);
        store(s, fma(v, load<Vec<Real>>(gain + g * stride + j * L), start(j, g)));
      }
  }
}

// All gates of a row in one order, the groups that are normalised together one after the other.
template <class Cell, int first, int end, class Real, class... Rest>
ELMAN_INLINE void normalise_gates(int64_t H, Real* row, const Rest&... rest) {
  constexpr int border = normed_together<Cell> < first ? first : normed_together<Cell> > end ? end : normed_together<Cell>;
  normalise<first, border>(H, row, rest...);
  normalise<border, end>(H, row, rest...);
}

// One gate in the backward pass: the gradient g of s = gain * x, x the normalised value.
template <class Real>
struct NormedGate {
  const Real *g, *x, *gain;
  Real *ggain, *to;
};

// ggain += g x, and `to` becomes the gradient of what was normalised. Past the last unit it stays as it was.
template <int G, class Real>
ELMAN_INLINE void normalise_back(int64_t H, Real scale, const NormedGate<Real> (&of)[G]) {
  const auto x = [&](int64_t n, int i) { return load<Vec<Real>>(of[i].x + n); };
  const auto v = [&](int64_t n, int i) { return load<Vec<Real>>(of[i].g + n) * load<Vec<Real>>(of[i].gain + n); };
  moments_back<G>(H, scale, v, x, [&](int64_t n, int i, Vec<Real> gs) {
    store(of[i].ggain + n, fma(load<Vec<Real>>(of[i].g + n), x(n, i), load<Vec<Real>>(of[i].ggain + n)));
    store_some(of[i].to + n, gs, H - n);
  });
}

// h = o * tanh(gain * (c - mean) * scale + bias), o given in h; mean and scale go to `save` if it is not null. (Neither this nor
// its backward pass is inlined: the loop around the plain cell would lose registers to them, and 6 % of its speed.)
template <class Real>
__attribute__((noinline)) void norm_c(int64_t H, const Real* c, const Real* gain, const Real* bias, Real* h, Real* save) {
  const Moments<Real> m = moments<1>(H, norm_eps<Real>, [&](int64_t n, int) { return load<Vec<Real>>(c + n); });
  if (save) save[0] = m.mean, save[1] = m.scale;
  for (int64_t n = 0; n < H; n += lanes<Real>) {
    const Vec<Real> v = (load<Vec<Real>>(c + n) - m.mean) * m.scale;
    store(h + n,
          load<Vec<Real>>(h + n) * hyperbolic_tangent<Real>(fma(v, load<Vec<Real>>(gain + n), load<Vec<Real>>(bias + n))));
  }
}

// Its backward pass, from what was saved, D(n) being the gradient of h: tanh_c gets the tanh, gc what comes by it to c; x is room
// for the normalised c.
template <class Real, class F>
__attribute__((noinline)) void norm_c_back(int64_t H, const Real* c, const Real* o, const Real* saved, const Real* gain,
                                           const Real* bias, const F& D, Real* ggain, Real* gbias, Real* tanh_c, Real* gc,
                                           Real* x) {
  const Real mean = saved[0], scale = saved[1];
  for (int64_t n = 0; n < H; n += lanes<Real>) {
    const Vec<Real> w = load<Vec<Real>>(gain + n), v = (load<Vec<Real>>(c + n) - mean) * scale;
    const Vec<Real> now = hyperbolic_tangent<Real>(fma(v, w, load<Vec<Real>>(bias + n)));
    const Vec<Real> e = D(n) * load<Vec<Real>>(o + n) * (Real(1) - now * now);
    store(ggain + n, fma(e, v, load<Vec<Real>>(ggain + n)));
    store(gbias + n, Vec<Real>(load<Vec<Real>>(gbias + n) + e));
    store(tanh_c + n, now);
    store(x + n, v);
    store(gc + n, Vec<Real>(e * w));
  }
  moments_back<1>(
      H, scale, [&](int64_t n, int) { return load<Vec<Real>>(gc + n); }, [&](int64_t n, int) { return load<Vec<Real>>(x + n); },
      [&](int64_t n, int, Vec<Real> gs) { store(gc + n, gs); });
}

}  // namespace elman::ELMAN_NS
