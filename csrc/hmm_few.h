// Forward and backward through a row of few states, for what EM expects of it: nothing but the next step waits for a step.
//
//   u[t] = s[t] l[t],  s[t+1] = A^T u[t];   v[t] = l[t] b[t],  b[t-1] = A v[t];   Z[t] = <u[t], b[t]> = <s[t], v[t]>
//   posterior[t] = u[t] b[t] / Z[t],  expected transitions = A_ij sum_t u[t]_i v[t+1]_j / Z[t]
//
// s and b are divided by their sums every few steps alone, and u or v with them, as the quotients above do not know of such
// factors; the likelihood is the product of what s was divided by. This filter is not the one of hmm.cpp, which is cut anywhere
// and goes on from a prediction.
//
// The passes begin at the two ends of a row, on two threads if there are, and leave u and b to each other up to the middle: from
// there on each of them meets what the other has left, and has the quotients. The middle depends on the row's length alone.
//
// l, s and b are at most 1 (or a few states' worth of it), so what underflows is at most the smallest number, beside sums that are at
// least `enough`. Where every state follows every other with at least the probability `least`, such a path stays nothing: whatever
// comes, another path joins it in one step, at no more than that cost. Else a path that is lost at one end of a row might have been
// the best one in the end. Then, where a sum or a Z is too small, and where anything is infinite or not a number, the row is left
// to the filter of hmm.cpp and its gradient.
#pragma once

#include <algorithm>

#include "hmm.h"

namespace elman::ELMAN_NS {

constexpr int64_t every = 8;  // steps between two divisions; a chunk has a whole number of them

// Beside `enough` times `least`, the smallest number (1e-38, 1e-308) is nothing.
template <class Real> constexpr Real enough = sizeof(Real) == 4 ? Real(1e-20) : Real(1e-250);
template <class Real> constexpr Real least = sizeof(Real) == 4 ? Real(1e-8) : Real(1e-40);

// Whether passes of this file lose nothing by A (K, K).
template <class Real>
bool mixes(const Real* A, int64_t K) {
  return std::all_of(A, A + K * K, [](Real a) { return a >= least<Real>; });
}

// A row of `length` steps, by A packed and by its transpose packed. l (length, K) is room; what one pass leaves to the other is
// where the posterior (length, K) will be.
template <class Real>
struct FewRow {
  Width<Real> w;
  const Real *start, *a, *at;
  const bool* reset;
  int64_t length;
  Real *l, *posterior;

  bool begins_at(int64_t t) const { return t == 0 || reset[t]; }
  bool ends_at(int64_t t) const { return t + 1 == length || reset[t + 1]; }
  int64_t middle() const { return length / 2 / chunk * chunk; }
};

// What one of the two passes carries, and what it sums: log likelihood, the expected states at the beginnings of sequences (K),
// and sum u_i v_j / Z (rows, padded), which may be null. In cache lines of its own, as the other thread writes the other one.
template <class Real>
struct alignas(cache_line) FewPass {
  Scratch<Real> z;
  Buffer<Real> other, carried, begins, counts;  // other (chunk, padded), carried (2, padded)
  double total = 0;
  bool good = true;

  FewPass(Width<Real> w, bool counted)
      : z(w, chunk, true),
        other(allocate<Real>(chunk * w.padded)),
        carried(zeros<Real>(2 * w.padded)),
        begins(zeros<Real>(w.K)),
        counts(counted ? zeros<Real>(w.rows * w.padded) : nullptr) {}

  void clear(Width<Real> w) {
    std::fill(begins.get(), begins.get() + w.K, Real(0));
    if (counts) std::fill(counts.get(), counts.get() + w.rows * w.padded, Real(0));
    total = 0, good = true;
  }
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

// counts += sum_i left_i right_j / Z over `count` steps.
template <int C, int R, class Real, int... I>
void few_counts(int64_t count, Width<Real> w, const Real* left, const Real* right, const Real* inverses, Real* counts,
                std::integer_sequence<int, I...>) {
  constexpr int L = lanes<Real>;
  Vec<Real> sum[R][C], u[C], v[C];
  const auto rows = std::min<int64_t>(R, w.rows);
  for (int64_t r = 0; r < R; ++r)
    for (int n = 0; n < C; ++n) sum[r][n] = r < rows ? load<Vec<Real>>(counts + r * w.padded + n * L) : Vec<Real>{};
  for (int64_t i = 0; i < count; ++i) {
    load_few(left + i * w.padded, u), load_few(right + i * w.padded, v);
    for (int n = 0; n < C; ++n) v[n] *= inverses[i];
    const auto add = [&](auto r) {
      const Vec<Real> share = spread<r.value % L>(u[r.value / L], std::make_integer_sequence<int, L>{});
      for (int n = 0; n < C; ++n) sum[r.value][n] = fma(share, v[n], sum[r.value][n]);
    };
    (add(std::integral_constant<int, I>{}), ...);
  }
  for (int64_t r = 0; r < rows; ++r)
    for (int n = 0; n < C; ++n) store(counts + r * w.padded + n * L, sum[r][n]);
}

// The posterior of `count` steps from t0 on, of which Z is the sum of p q, and their part of the counts. p is written over.
template <int C, int R, class Real>
void few_quotients(const FewRow<Real>& row, int64_t t0, int64_t count, Real* p, const Real* q, const Real* left,
                   const Real* right, FewPass<Real>& pass) {
  const Width<Real> w = row.w;
  Real* inverses = pass.z.m.get();
  Vec<Real> a[C], b[C];
  bool good = true;
  for (int64_t i = 0; i < count; ++i) {
    load_few(p + i * w.padded, a), load_few(q + i * w.padded, b);
    for (int n = 0; n < C; ++n) b[n] *= a[n];
    const Real Z = sum_few<C, R, Real>(b);
    inverses[i] = Real(1) / Z;
    good &= Z >= enough<Real> && inverses[i] > 0;
  }
  pass.good &= good;
  if (pass.counts)
    few_counts<C, R, Real>(count, w, left, right, inverses, pass.counts.get(), std::make_integer_sequence<int, R>{});
  for (int64_t i = 0; i < count; ++i) {
    load_few(p + i * w.padded, a), load_few(q + i * w.padded, b);
    for (int n = 0; n < C; ++n) b[n] *= a[n] * inverses[i];
    store_few(b, p + i * w.padded);
    if (row.begins_at(t0 + i))
      for (int64_t k = 0; k < w.K; ++k) pass.begins[k] += p[i * w.padded + k];
  }
  narrow(p, count, w, row.posterior + t0 * w.K);
}

// Forward from the beginning to the middle, `likelihoods` making l (t0, count), or from there to the end.
template <int C, int R, bool meets, class Real, class Likelihoods>
void few_forward(const FewRow<Real>& row, FewPass<Real>& pass, const Likelihoods& likelihoods) {
  const Width<Real> w = row.w;
  const int64_t first = meets ? row.middle() : 0, end = meets ? row.length : row.middle();
  const Matrix<C, R, Real> matrix(row.a, w);
  Vec<Real> start[C], s[C], u[C]{}, l[C], v[C];
  Scratch<Real>& z = pass.z;
  read(row.start, w.K, z.s.get(), w.padded, Real(0));
  load_few(z.s.get(), start), load_few(pass.carried.get(), s);
  bool open = false;  // steps have been taken since the last division
  const auto close = [&] {
    const Real c = sum_few<C, R, Real>(u);
    pass.good &= c >= enough<Real>;
    pass.total += std::log(double(c));
    open = false;
    return c;
  };
  for (int64_t t0 = first; t0 < end && pass.good; t0 += chunk) {
    const int64_t count = std::min(chunk, end - t0);
    if (!meets) pass.total += likelihoods(t0, count, pass);
    widen(row.l + t0 * w.K, count, w, z.l.get(), Real(0));
    if (meets) widen(row.posterior + t0 * w.K, count, w, z.b.get(), Real(0));
    for (int64_t i = 0; i < count; ++i) {
      if (row.begins_at(t0 + i)) {
        if (open) close();
        for (int n = 0; n < C; ++n) s[n] = start[n], u[n] = Vec<Real>{};
      }
      load_few(z.l.get() + i * w.padded, l);
      if (meets) {
        load_few(z.b.get() + i * w.padded, v);
        for (int n = 0; n < C; ++n) v[n] *= l[n];
        store_few(u, pass.other.get() + i * w.padded), store_few(v, z.b.get() + i * w.padded);
        store_few(s, z.p.get() + i * w.padded);
      }
      for (int n = 0; n < C; ++n) u[n] = s[n] * l[n];
      if (!meets) store_few(u, z.p.get() + i * w.padded);
      matrix.times(u, s);
      open = true;
      if (i % every != every - 1) continue;
      const Real factor = Real(1) / close();
      for (int n = 0; n < C; ++n) s[n] *= factor, u[n] *= factor;
    }
    if (meets) few_quotients<C, R>(row, t0, count, z.p.get(), z.b.get(), pass.other.get(), z.b.get(), pass);
    else narrow(z.p.get(), count, w, row.posterior + t0 * w.K);
  }
  if (open) close();
  store_few(s, pass.carried.get());
}

// Backward from the end to the middle, or from there to the beginning.
template <int C, int R, bool meets, class Real, class Likelihoods>
void few_backward(const FewRow<Real>& row, FewPass<Real>& pass, const Likelihoods& likelihoods) {
  const Width<Real> w = row.w;
  const int64_t first = meets ? 0 : row.middle();
  const Matrix<C, R, Real> matrix(row.at, w);
  Vec<Real> b[C], v[C], l[C];
  Scratch<Real>& z = pass.z;
  load_few(pass.carried.get(), b), load_few(pass.carried.get() + w.padded, v);
  for (int64_t end = meets ? row.middle() : row.length; end > first && pass.good;) {
    const int64_t t0 = (end - 1) / chunk * chunk, count = end - t0;
    if (!meets) pass.total += likelihoods(t0, count, pass);
    widen(row.l + t0 * w.K, count, w, z.l.get(), Real(0));
    if (meets) widen(row.posterior + t0 * w.K, count, w, z.p.get(), Real(0));
    for (int64_t i = count - 1; i >= 0; --i) {
      if (row.ends_at(t0 + i))
        for (int n = 0; n < C; ++n) b[n] = splat<Real>(Real(1)), v[n] = Vec<Real>{};
      store_few(b, z.b.get() + i * w.padded);
      if (meets) store_few(v, pass.other.get() + i * w.padded);
      load_few(z.l.get() + i * w.padded, l);
      for (int n = 0; n < C; ++n) v[n] = l[n] * b[n];
      matrix.times(v, b);
      if (i % every != 0) continue;
      const Real sum = sum_few<C, R, Real>(b), factor = Real(1) / sum;
      pass.good &= sum >= enough<Real>;
      for (int n = 0; n < C; ++n) b[n] *= factor, v[n] *= factor;
    }
    if (meets) few_quotients<C, R>(row, t0, count, z.p.get(), z.b.get(), z.p.get(), pass.other.get(), pass);
    else narrow(z.b.get(), count, w, row.posterior + t0 * w.K);
    end = t0;
  }
  store_few(b, pass.carried.get()), store_few(v, pass.carried.get() + w.padded);
}

template <int C, int R, bool meet, class Real, class Likelihoods>
void few_passes(const FewRow<Real>& row, FewPass<Real>& forward, FewPass<Real>& backward, const Likelihoods& likelihoods,
                int threads) {
  parallel(threads, 2, [&](int64_t first, int64_t end) {
    if (first == 0) few_forward<C, R, meet>(row, forward, likelihoods);
    if (end == 2) few_backward<C, R, meet>(row, backward, likelihoods);
  });
}

// Both passes over a row, on at most two threads. `likelihoods(t0, count, pass)` makes l of some steps, each relative to its best,
// and returns the sum of the logarithms of the best; pass.z is its room. False if there are too many states, or too little is left.
template <class Real, class Likelihoods>
bool few_row(const FewRow<Real>& row, FewPass<Real>& forward, FewPass<Real>& backward, const Likelihoods& likelihoods,
             int threads) {
  forward.clear(row.w), backward.clear(row.w);
  const bool fits = in_registers(row.w, [&](auto C, auto R) {
    few_passes<C.value, R.value, false>(row, forward, backward, likelihoods, threads);
    if (forward.good && backward.good) few_passes<C.value, R.value, true>(row, forward, backward, likelihoods, threads);
  });
  return fits && forward.good && backward.good;
}

}  // namespace elman::ELMAN_NS
