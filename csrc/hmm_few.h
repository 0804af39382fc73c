// Forward and backward through a row of few states, for what EM expects of it: nothing but the next step waits for a step.
//
//   u[t] = s[t] l[t],  s[t+1] = A^T u[t];   v[t] = l[t] b[t],  b[t-1] = A v[t];   Z[t] = <u[t], b[t]>
//   posterior[t] = u[t] b[t] / Z[t],  expected transitions = A_ij sum_t u[t]_i v[t+1]_j / Z[t]
//
// s and b are divided by their sums every few steps alone, as the quotients above do not know of such factors; the likelihood
// is the product of what s was divided by. This filter is not the one of hmm.cpp, which is cut anywhere and goes on from a
// prediction.
//
// l, s and b are at most 1 (or a few states' worth of it), so what underflows in one of them is the smallest number at most in a
// Z: as long as every Z is far above that, nothing that counts was lost. Else, and where anything is infinite or not a number,
// the row is left to the filter of hmm.cpp and its gradient.
#pragma once

#include "hmm.h"

namespace elman::ELMAN_NS {

constexpr int64_t every = 8;  // steps between two divisions; a chunk has a whole number of them

// Beside it, the smallest number is nothing.
template <class Real> constexpr Real enough = sizeof(Real) == 4 ? Real(1e-28) : Real(1e-250);

// A row of `length` steps. l and u (length, K): l is what comes in, the posterior comes out in u. Also out: the expected
// states at the beginnings of sequences (K), added, and sum_t u_i v_j / Z (rows, padded), added.
template <class Real>
struct FewRow {
  const Real *start, *l;
  const bool* reset;
  int64_t length;
  Real *u, *begins, *counts;

  bool begins_at(int64_t t) const { return t == 0 || reset[t]; }
};

template <int C, int R, class Real>
ELMAN_INLINE Real sum_few(const Vec<Real> (&v)[C]) {
  Vec<Real> total = v[0];
  for (int n = 1; n < C; ++n) total += v[n];
  return fold<std::min(R, lanes<Real>) / 2>(total, std::make_integer_sequence<int, lanes<Real>>{})[0];  // others are zero
}

template <int C, class Real>
ELMAN_INLINE void load_few(const Real* from, Vec<Real> (&to)[C]) {
  for (int n = 0; n < C; ++n) to[n] = load<Vec<Real>>(from + n * lanes<Real>);
}

template <int C, class Real>
ELMAN_INLINE void store_few(const Vec<Real> (&from)[C], Real* to) {
  for (int n = 0; n < C; ++n) store(to + n * lanes<Real>, from[n]);
}

// u of all steps by the packed A; adds the logarithm of what s was divided by to `total`. False if too little is left.
template <int C, int R, class Real>
bool few_forward(const FewRow<Real>& row, Width<Real> w, const Real* a, Scratch<Real>& z, double& total) {
  const Matrix<C, R, Real> matrix(a, w);
  Vec<Real> start[C], s[C], u[C], l[C];
  read(row.start, w.K, z.s.get(), w.padded, Real(0));
  load_few(z.s.get(), start);
  bool good = true, open = false;  // open: steps have been taken since the last division
  const auto close = [&] {
    const Real c = sum_few<C, R, Real>(u);
    good &= c >= enough<Real>;
    total += std::log(double(c));
    open = false;
    return c;
  };
  for (int64_t t0 = 0; t0 < row.length && good; t0 += chunk) {
    const int64_t count = std::min(chunk, row.length - t0);
    widen(row.l + t0 * w.K, count, w, z.l.get(), Real(0));
    for (int64_t i = 0; i < count; ++i) {
      if (row.begins_at(t0 + i)) {
        if (open) close();
        for (int n = 0; n < C; ++n) s[n] = start[n];
      }
      load_few(z.l.get() + i * w.padded, l);
      for (int n = 0; n < C; ++n) u[n] = s[n] * l[n];
      store_few(u, z.p.get() + i * w.padded);
      matrix.times(u, s);
      open = true;
      if (i % every != every - 1) continue;
      const Real factor = Real(1) / close();
      for (int n = 0; n < C; ++n) s[n] *= factor;
    }
    narrow(z.p.get(), count, w, row.u + t0 * w.K);
  }
  if (open) close();
  return good;
}

// From u and v of `count` steps from t0 on to the posterior, which takes the place of u.
template <int C, int R, class Real, int... I>
bool few_quotients(const FewRow<Real>& row, int64_t t0, int64_t count, Width<Real> w, Real* us, const Real* bs, const Real* vs,
                   std::integer_sequence<int, I...>) {
  constexpr int L = lanes<Real>;
  Vec<Real> counts[R][C], u[C], b[C], v[C];
  const auto rows = std::min<int64_t>(R, w.rows);
  for (int64_t r = 0; r < R; ++r)
    for (int n = 0; n < C; ++n) counts[r][n] = r < rows ? load<Vec<Real>>(row.counts + r * w.padded + n * L) : Vec<Real>{};
  bool good = true;
  for (int64_t i = 0; i < count; ++i) {
    Real* at = us + i * w.padded;
    load_few(at, u), load_few(bs + i * w.padded, b), load_few(vs + i * w.padded, v);
    for (int n = 0; n < C; ++n) b[n] *= u[n];
    const Real Z = sum_few<C, R, Real>(b), inverse = Real(1) / Z;
    good &= Z >= enough<Real> && inverse > 0;
    for (int n = 0; n < C; ++n) u[n] *= inverse, b[n] *= inverse;
    store_few(b, at);
    const auto add = [&](auto r) {
      const Vec<Real> share = spread<r.value % L>(u[r.value / L], std::make_integer_sequence<int, L>{});
      for (int n = 0; n < C; ++n) counts[r.value][n] = fma(share, v[n], counts[r.value][n]);
    };
    (add(std::integral_constant<int, I>{}), ...);
    if (row.begins_at(t0 + i))
      for (int64_t k = 0; k < w.K; ++k) row.begins[k] += at[k];
  }
  for (int64_t r = 0; r < rows; ++r)
    for (int n = 0; n < C; ++n) store(row.counts + r * w.padded + n * L, counts[r][n]);
  return good;
}

// The posterior and the counts, by the packed transpose of A and u of all steps. False if too little is left.
template <int C, int R, class Real>
bool few_backward(const FewRow<Real>& row, Width<Real> w, const Real* at, Scratch<Real>& z, Real* vs) {
  const Matrix<C, R, Real> matrix(at, w);
  Vec<Real> b[C], v[C], l[C];
  bool good = true;
  for (int64_t end = row.length; end > 0 && good;) {
    const int64_t t0 = (end - 1) / chunk * chunk, count = end - t0;
    widen(row.l + t0 * w.K, count, w, z.l.get(), Real(0));
    widen(row.u + t0 * w.K, count, w, z.p.get(), Real(0));
    for (int64_t i = count - 1; i >= 0; --i) {
      if (t0 + i + 1 == row.length || row.reset[t0 + i + 1])
        for (int n = 0; n < C; ++n) b[n] = splat<Real>(Real(1)), v[n] = Vec<Real>{};
      store_few(b, z.b.get() + i * w.padded);
      store_few(v, vs + i * w.padded);
      load_few(z.l.get() + i * w.padded, l);
      for (int n = 0; n < C; ++n) v[n] = l[n] * b[n];
      matrix.times(v, b);
      if (i % every != 0) continue;
      const Real factor = Real(1) / sum_few<C, R, Real>(b);
      for (int n = 0; n < C; ++n) b[n] *= factor, v[n] *= factor;
    }
    good = few_quotients<C, R, Real>(row, t0, count, w, z.p.get(), z.b.get(), vs, std::make_integer_sequence<int, R>{});
    narrow(z.p.get(), count, w, row.u + t0 * w.K);
    end = t0;
  }
  return good;
}

}  // namespace elman::ELMAN_NS
