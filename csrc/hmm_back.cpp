// The gradient of the forward filter of hmm.cpp: the backward algorithm.
#include <algorithm>

#include "hmm.h"
#include "hmm_logs.h"

namespace elman::ELMAN_NS {
namespace {

// ga += sum_t f[t] g[t]^T over `count` steps: ft (rows, chunk) transposed, g [vector of columns][chunk][lanes].
template <int C, class Real>
ELMAN_INLINE void accumulate_columns(const Real* ft, const Real* g, int64_t count, int64_t j, Width<Real> w, Real* ga) {
  constexpr int L = lanes<Real>;
  row_tiles<4>(0, w.K, [&](auto R, int64_t i) {
    constexpr int rows = decltype(R)::value;
    Vec<Real> sum[rows][C];
    for (int r = 0; r < rows; ++r)
      for (int n = 0; n < C; ++n) sum[r][n] = load<Vec<Real>>(ga + (i + r) * w.padded + j + n * L);
    tile<rows, C, 1>(sum, g + j * chunk, chunk * L, ft + i * chunk, chunk, count);
    for (int r = 0; r < rows; ++r)
      for (int n = 0; n < C; ++n) store(ga + (i + r) * w.padded + j + n * L, sum[r][n]);
  });
}

template <class Real>
void accumulate(const Real* ft, const Real* g, int64_t count, Width<Real> w, Real* ga) {
  int64_t j = 0;
  for (; j + 2 * lanes<Real> <= w.padded; j += 2 * lanes<Real>) accumulate_columns<2>(ft, g, count, j, w, ga);
  if (j < w.padded) accumulate_columns<1>(ft, g, count, j, w, ga);
}

// What the backward pass of a row reads and writes, at the row.
template <class Real>
struct RowBack {
  const Real *x, *start, *state, *p, *shift, *scale, *glog, *gp, *glast;
  const bool* reset;
  int64_t length;
  Real *gx, *gstate;

  const Real* s(int64_t t, int64_t K) const { return before(p, start, state, reset, t, K); }
};

// The gradient of one row. G = dL/ds[t+1] comes from the right, and gp[t], the gradient of p[t], joins it:
//
//   G += gp,  r = exp(x - m) / c,  f = s r,  b = A G,  gx = f (g + b - <f, b>),  G = r (g + b - <f, b>)
//
// <f, b> is known if only log_c has a gradient: it is g[t+1]. Then b is scaled to agree, and posteriors sum to one.
// What does not wait for the step to the right is done for a whole chunk at once: r and f before the chain, gx after it.
// How b enters: scale * b + base.
template <class Real>
struct Affine {
  Real scale, base;
};

template <class Real>
ELMAN_INLINE Affine<Real> affine(bool likelihood, Real mean, Real onward, Real g) {
  // Where g[t+1] is zero, what is left of <f, b> is rounding, and b is not: it has what the steps behind that one say.
  if (likelihood && onward > 0 && mean > 0) return {onward / mean, g - onward};
  return {Real(1), g - mean};
}

// <f, b> of one step, f = s r; all of them padded.
template <class Real>
ELMAN_INLINE Real mean_of(const Real* s, const Real* r, const Real* b, Width<Real> w) {
  Vec<Real> total{};
  for (int64_t k = 0; k < w.padded; k += lanes<Real>)
    total += load<Vec<Real>>(s + k) * load<Vec<Real>>(r + k) * load<Vec<Real>>(b + k);
  return sum_lanes<Real>(total);
}

// s and r of a chunk (count, padded), r zero where s cannot be, and f transposed, (K, chunk), unless that is null.
template <class Real>
void ratios(int64_t t0, int64_t count, Width<Real> w, const RowBack<Real>& o, Real* s, Real* r, Real* ft, Real* f, Real* room) {
  relatives(o.x + t0 * w.K, o.shift + t0, count, w, r, room);
  const int64_t begins = t0 == 0;  // that step has none before it
  widen(o.p + (t0 - 1 + begins) * w.K, count - begins, w, s + begins * w.padded, Real(0));
  for (int64_t i = 0; i < count; ++i)
    if (t0 + i == 0 || o.reset[t0 + i]) read(o.s(t0 + i, w.K), w.K, s + i * w.padded, w.padded, Real(0));
  for (int64_t i = 0; i < count; ++i, r += w.padded, s += w.padded) {
    const int64_t t = t0 + i;
    const Real c = o.scale[t], inverse = c > 0 ? Real(1) / c : Real(0);
    for (int64_t k = 0; k < w.padded; k += lanes<Real>) {
      const Vec<Real> sk = load<Vec<Real>>(s + k);
      const Vec<Real> rk = sk > Real(0) ? load<Vec<Real>>(r + k) * inverse : Vec<Real>{};
      store(r + k, rk);
      store(f + k, Vec<Real>(sk * rk));
    }
    for (int64_t k = 0; k < w.K && ft; ++k) ft[k * chunk + i] = f[k];
  }
}

// What the chain carries from step to step: G (padded), and g[t+1] if step t + 1 follows on step t.
template <class Real>
struct Link {
  Real *G, onward;
};

// G of every step of a chunk, to gs unless that is null, and b, for `finish`. C > 0: b stays in C registers on its way to G, and
// R > 0: G too, and the transitions of at most R states, S being of no use then. C = 0: a team divides the columns, and meets after
// every product. Each member has a link of its own, and the first one writes what there is besides b.
template <int C, int S, int R, class Real>
void chain(int64_t t0, int64_t count, Width<Real> w, const RowBack<Real>& o, const Real* at, const Real* r, Real* gstart,
           Real* gs, Real* onwards, const Real* s, Real* bs, Link<Real>& link, Member* member) {
  constexpr int L = lanes<Real>;
  const bool likelihood = !o.gp && !o.glast;
  const bool writes = C > 0 || member->thread == 0;
  Real* G = link.G;
  constexpr int vectors = C > 0 ? C : 1, rows = R > 0 ? R : 4;
  const Matrix<vectors, rows, Real> matrix(at, w);
  Vec<Real> g[vectors];
  const auto fetch = [&] {
    for (int n = 0; n < C && R > 0; ++n) g[n] = load<Vec<Real>>(G + n * L);
  };
  fetch();
  for (int64_t i = count - 1; i >= 0; --i) {
    const int64_t t = t0 + i;
    if (t + 1 < o.length && o.reset[t + 1]) {
      for (int64_t k = 0; k < w.K && writes; ++k) gstart[k] += G[k];
      std::fill(G, G + w.padded, Real(0));
      link.onward = 0;
      fetch();
    }
    if (o.gp) {
      for (int64_t k = 0; k < w.K; ++k) G[k] += o.gp[t * w.K + k];
      fetch();
    }
    for (int64_t k = 0; k < w.padded && gs && writes; k += L) store(gs + k * chunk + i * L, load<Vec<Real>>(G + k));
    Vec<Real> y[vectors];
    Real* b = bs + i * w.padded;
    if constexpr (R > 0) matrix.times(g, y);
    else if constexpr (C > 0) product_tile<Times, C, S>(at, G, w.rows, y);
    else {
      product<Times>(at, G, w, b, columns(w, *member));
      if (!member->meet()) return;
    }
    const auto bk = [&](int64_t k) { return C > 0 ? y[k / L] : load<Vec<Real>>(b + k); };
    for (int64_t k = 0; k < C * L; k += L) store(b + k, bk(k));
    const Real glog = o.glog[t];
    // The scale is 1 but for rounding, so the chain need not wait for it at every step.
    Affine<Real> by{Real(1), Real(0)};
    if (!likelihood || t % 16 == 0 || link.onward != glog || !(o.scale[t] > 0))
      by = affine(likelihood, mean_of(s + i * w.padded, r + i * w.padded, b, w), link.onward, glog);
    for (int64_t k = 0; k < (C > 0 ? C * L : w.padded); k += L) {
      const Vec<Real> v = load<Vec<Real>>(r + i * w.padded + k) * fma(bk(k), splat<Real>(by.scale), splat<Real>(by.base));
      if constexpr (R > 0) g[k / L] = v;
      store(G + k, v);
    }
    if (writes) onwards[i] = link.onward;
    link.onward = o.scale[t] > 0 ? glog : Real(0);
  }
}

// gx = f (scale b + base), where b was, then to its place.
template <class Real>
void finish(int64_t t0, int64_t count, Width<Real> w, const RowBack<Real>& o, const Real* s, const Real* r, Real* bs,
            const Real* onwards) {
  for (int64_t i = 0; i < count; ++i, r += w.padded, s += w.padded) {
    Real* b = bs + i * w.padded;
    const Affine<Real> by = affine(!o.gp && !o.glast, mean_of(s, r, b, w), onwards[i], o.glog[t0 + i]);
    for (int64_t k = 0; k < w.padded; k += lanes<Real>) {
      const Vec<Real> f = load<Vec<Real>>(s + k) * load<Vec<Real>>(r + k);
      store(b + k, Vec<Real>(f * fma(load<Vec<Real>>(b + k), splat<Real>(by.scale), splat<Real>(by.base))));
    }
  }
  narrow(bs, count, w, o.gx + t0 * w.K);
}

template <class Real>
void filter_row_back(int64_t steps, Width<Real> w, const RowBack<Real>& o, const Real* at, Real* gstart, Real* ga,
                     Scratch<Real>& z, Real* ft, Real* gs, int threads) {
  Real *G = z.u.get(), *r = z.l.get(), *s = z.p.get(), *b = z.b.get();
  std::fill(G, G + w.padded, Real(0));
  if (o.glast) std::memcpy(G, o.glast, w.K * sizeof(Real));
  Link<Real> link{G, Real(0)};
  for (int64_t end = o.length; end > 0;) {
    const int64_t t0 = (end - 1) / chunk * chunk, count = end - t0;
    ratios(t0, count, w, o, s, r, ft, z.s.get(), b);
    const auto run = [&](auto chained, Link<Real>& link, Member* member) {
      chained(t0, count, w, o, at, r, gstart, gs, z.m.get(), s, b, link, member);
    };
    const auto together = [&](Member member) {
      const bool first = member.thread == 0;
      const Buffer<Real> copy = zeros<Real>(first ? 0 : w.padded + w.rows);
      Link<Real> own{copy.get(), link.onward};
      if (!first) std::memcpy(own.G, G, w.padded * sizeof(Real));
      if (member.meet()) run(chain<0, 1, 0, Real>, first ? link : own, &member);
    };
    if (!in_registers(w, [&](auto C, auto R) { run(chain<C.value, 1, R.value, Real>, link, nullptr); }))
      in_vectors(w, [&](auto C, auto A) {
        if constexpr (C.value > 0) run(chain<C.value, A.value, 0, Real>, link, nullptr);
        else team(threads, together);
      });
    finish(t0, count, w, o, s, r, b, z.m.get());
    if (ga) accumulate(ft, gs, count, w, ga);
    end = t0;
  }
  std::fill(o.gx + o.length * w.K, o.gx + steps * w.K, Real(0));
  std::fill(o.gstate, o.gstate + w.K, Real(0));
  if (o.length > 0 && o.reset[0])
    for (int64_t k = 0; k < w.K; ++k) gstart[k] += G[k];
  else std::memcpy(o.gstate, G, w.K * sizeof(Real));
}

}  // namespace

template <class Real>
void hmm_filter_back(const HmmInputs<Real>& in, const HmmArriving<Real>& from, const HmmGradients<Real>& to, int threads) {
  const int64_t steps = in.T, K = in.K;
  const Width<Real> w(K);
  const Buffer<Real> at = pack(in.transition, 1, K, w, Real(0));
  const LogChain<Real> logs(in, w, from.lost && std::find(from.lost, from.lost + in.B, true) != from.lost + in.B);
  const int64_t groups = std::min(in.B, row_groups);
  const int within = threads_within(in, w, threads);
  parallel(threads_for(in, threads), groups, [&](int64_t first, int64_t end) {
    Scratch<Real> z(w, steps, true);
    Buffer<Real> ft, gs, sum, counts;
    if (to.ga) {
      ft = allocate<Real>(chunk * w.padded), gs = allocate<Real>(chunk * w.padded);
      sum = allocate<Real>(w.padded * w.padded), counts = allocate<Real>(w.padded * w.padded);
    }
    for (int64_t i = first; i < end; ++i) {
      Real* gstart = to.gstart + i * K;
      for (Real* p : {sum.get(), counts.get()})
        if (p) std::fill(p, p + w.padded * w.padded, Real(0));
      std::fill(gstart, gstart + K, Real(0));
      for (int64_t b = in.B * i / groups; b < in.B * (i + 1) / groups; ++b) {
        if (from.lost && from.lost[b]) {
          filter_row_back_in_logs(in, from, to, b, w, logs, gstart, counts.get(), z);
          continue;
        }
        RowBack<Real> row;
        row.x = in.x + b * steps * K;
        row.start = in.start;
        row.state = in.state + b * K;
        row.p = from.p + b * steps * K;
        row.shift = from.shift + b * steps;
        row.scale = from.scale + b * steps;
        row.glog = from.glog + b * steps;
        row.gp = from.gp ? from.gp + b * steps * K : nullptr;
        row.glast = from.glast ? from.glast + b * K : nullptr;
        row.reset = in.reset + b * steps;
        row.length = in.lengths[b];
        row.gx = to.gx + b * steps * K;
        row.gstate = to.gstate + b * K;
        filter_row_back(steps, w, row, at.get(), gstart, sum.get(), z, ft.get(), gs.get(), within);
      }
      for (int64_t k = 0; k < K && to.ga; ++k)
        for (int64_t j = 0; j < K; ++j) {
          const Real counted = counts[k * w.padded + j], a = in.transition[k * K + j];
          to.ga[(i * K + k) * K + j] = a > 0 ? sum[k * w.padded + j] + counted / a : Real(0);  // what cannot be has no say
        }
    }
  });
}

template HmmFilterBack<float> hmm_filter_back<float>;
template HmmFilterBack<double> hmm_filter_back<double>;

}  // namespace elman::ELMAN_NS
