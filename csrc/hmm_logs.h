// The filter of a row in logarithms, in which nothing underflows, and its gradient: some ten times the work, for the few rows
// that need it. q is the logarithm of a prediction:
//
//   q[0] = log state, or log start at a reset;  f = q[t] + x[t] - log_c,  log_c = log sum e^(q + x),  q[t+1][j] = log sum_i e^(f_i) A_ij
//
// With W_ij = e^(f_i) A_ij / e^(q[t+1][j]), how probable it is to have come to j from i, and D[t] = dL/dq[t]:
//
//   F_i = sum_j W_ij D[t+1]_j,   dL/dx[t] = D[t] = F + e^f (g - sum F),   dL/dA_ij = sum_t W_ij D[t+1]_j / A_ij
//
// W is a probability, so nothing overflows either. What cannot be, a zero of A or of the start, has a gradient of zero.
#pragma once

#include "hmm.h"

namespace elman::ELMAN_NS {

// The logarithms of a chain: start (K), transition (K, padded), by rows, -infinity outside.
template <class Real>
struct LogChain {
  Buffer<Real> start, transition;
  LogChain(const HmmInputs<Real>& in, Width<Real> w, bool wanted) {
    if (!wanted) return;
    start = allocate<Real>(w.K), transition = allocate<Real>(w.K * w.padded);
    for (int64_t i = 0; i < w.K; ++i) {
      start[i] = std::log(in.start[i]);
      for (int64_t j = 0; j < w.padded; ++j)
        transition[i * w.padded + j] = j < w.K ? std::log(in.transition[i * w.K + j]) : -infinity<Real>;
    }
  }
};

// f = q + x - log_c (padded); log_c. Where nothing is possible f is -infinity.
template <class Real>
Real filtered_in_logs(const Real* q, const Real* x, Width<Real> w, Real* f) {
  for (int64_t k = 0; k < w.padded; ++k) f[k] = k < w.K ? q[k] + x[k] : -infinity<Real>;
  const Real top = largest(f, w.padded);
  if (top == -infinity<Real>) return top;
  Vec<Real> total{};
  for (int64_t k = 0; k < w.padded; k += lanes<Real>) total += relative<Real>(load<Vec<Real>>(f + k), top);
  const Real log_c = top + std::log(sum_lanes<Real>(total));
  for (int64_t k = 0; k < w.padded; ++k) f[k] -= log_c;
  return log_c;
}

// q_j = log sum_i e^(f_i) A_ij.
template <class Real>
void advance_in_logs(const Real* f, const LogChain<Real>& chain, Width<Real> w, Real* q) {
  for (int64_t j = 0; j < w.padded; j += lanes<Real>) {
    const auto term = [&](int64_t i) { return load<Vec<Real>>(chain.transition.get() + i * w.padded + j) + f[i]; };
    Vec<Real> top = splat<Real>(-infinity<Real>), total{};
    for (int64_t i = 0; i < w.K; ++i) top = Best::join(term(i), top);
    const Vec<Real> base = top == -infinity<Real> ? Vec<Real>{} : top;  // -inf minus -inf would be NaN
    for (int64_t i = 0; i < w.K; ++i) total += relative<Real>(term(i) - base, Real(0));
    store(q + j, Vec<Real>(base + logarithm<Real>(top == -infinity<Real> ? Vec<Real>{} : total)));
  }
}

// Row b once more: p is q in it, shift is log_c.
template <class Real>
void filter_row_in_logs(const HmmInputs<Real>& in, const HmmOutputs<Real>& out, int64_t b, Width<Real> w,
                        const LogChain<Real>& chain, Scratch<Real>& z) {
  Real *q = z.s.get(), *f = z.u.get();
  for (int64_t k = 0; k < w.K; ++k) q[k] = std::log(in.state[b * w.K + k]);
  for (int64_t t = 0; t < in.lengths[b]; ++t) {
    const int64_t at = b * in.T + t;
    if (in.reset[at]) std::memcpy(q, chain.start.get(), w.K * sizeof(Real));
    out.log_c[at] = out.shift[at] = filtered_in_logs(q, in.x + at * w.K, w, f);
    advance_in_logs(f, chain, w, q);
    if (out.p) std::memcpy(out.p + at * w.K, q, w.K * sizeof(Real));
  }
  for (int64_t k = 0; k < w.K; ++k) out.last[b * w.K + k] = std::exp(q[k]);
  std::fill(f, f + w.padded + w.rows, Real(0)), std::fill(q, q + w.padded + w.rows, Real(0));  // as Scratch has them
}

// F = W D, and counts += W_ij D_j (K, padded), unless that is null: q (padded) is the prediction after the step, D (padded).
template <class Real>
void came_from(const Real* f, const Real* q, const Real* D, const LogChain<Real>& chain, Width<Real> w, Real* F, Real* counts) {
  for (int64_t i = 0; i < w.K; ++i) {
    Vec<Real> total{};
    for (int64_t j = 0; j < w.padded; j += lanes<Real>) {
      const Vec<Real> log_w = load<Vec<Real>>(chain.transition.get() + i * w.padded + j) + f[i] - load<Vec<Real>>(q + j);
      const Vec<Real> share = relative<Real>(log_w, Real(0)) * load<Vec<Real>>(D + j);
      if (counts) store(counts + i * w.padded + j, Vec<Real>(load<Vec<Real>>(counts + i * w.padded + j) + share));
      total += share;
    }
    F[i] = sum_lanes<Real>(total);
  }
}

// The gradient of row b, of its log_c alone. Adds to gstart (K) and to counts (K, padded), unless that is null.
template <class Real>
void filter_row_back_in_logs(const HmmInputs<Real>& in, const HmmArriving<Real>& from, const HmmGradients<Real>& to, int64_t b,
                             Width<Real> w, const LogChain<Real>& chain, Real* gstart, Real* counts, Scratch<Real>& z) {
  const int64_t K = w.K, first = b * in.T, length = in.lengths[b];
  const Buffer<Real> D = zeros<Real>(w.padded), F = zeros<Real>(w.padded), q = zeros<Real>(w.padded),
                     log_state = zeros<Real>(K);
  for (int64_t k = 0; k < K; ++k) log_state[k] = std::log(in.state[b * K + k]);
  const auto by_value = [&](const Real* value, Real* gradient) {  // from the logarithm of what a sequence begins with
    for (int64_t k = 0; k < K; ++k) gradient[k] += value[k] > 0 ? D[k] / value[k] : Real(0);
  };
  for (int64_t t = length - 1; t >= 0; --t) {
    const int64_t at = first + t;
    if (t + 1 < length && in.reset[at + 1]) {
      by_value(in.start, gstart);
      std::fill(D.get(), D.get() + w.padded, Real(0));
    }
    Real* f = z.u.get();
    const Real* now = before<Real>(from.p + first * K, chain.start.get(), log_state.get(), in.reset + first, t, K);
    const Real log_c = filtered_in_logs(now, in.x + at * K, w, f);
    for (int64_t k = 0; k < K; ++k) q[k] = from.p[at * K + k] == -infinity<Real> ? Real(0) : from.p[at * K + k];  // its D is 0
    came_from(f, q.get(), D.get(), chain, w, F.get(), counts);
    Real left = from.glog[at];
    for (int64_t k = 0; k < K; ++k) left -= F[k];
    for (int64_t k = 0; k < K; ++k) D[k] = log_c > -infinity<Real> ? F[k] + std::exp(f[k]) * left : Real(0);
    std::memcpy(to.gx + at * K, D.get(), K * sizeof(Real));
  }
  std::fill(to.gx + (first + length) * K, to.gx + (first + in.T) * K, Real(0));
  std::fill(to.gstate + b * K, to.gstate + (b + 1) * K, Real(0));
  if (length > 0) by_value(in.reset[first] ? in.start : in.state + b * K, in.reset[first] ? gstart : to.gstate + b * K);
  std::fill(z.u.get(), z.u.get() + w.padded + w.rows, Real(0));
}

}  // namespace elman::ELMAN_NS
