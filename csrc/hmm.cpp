// Hidden Markov models: the forward filter, and its gradient, which is the backward algorithm.
//
//   s[0] = state, or start at a reset;   u = s[t] * exp(x[t] - m),  c = sum u,  log_c[t] = m + log c,  s[t+1] = A^T u / c
//
// Scaled, not in log space: m is the largest x of the step, so that only what is hopeless beside the best underflows. Where
// almost all of s lies on such states, m is the largest x among those that s can be in, and nothing underflows together.
// A row is computed by one thread, and the order of its sums depends on K alone: its bits do not depend on the batch.
#include "hmm.h"

#include "kernels.h"
#include "math.h"
#include "parallel.h"

namespace elman::ELMAN_NS {
namespace {

constexpr int64_t chunk = 64;       // steps whose exponentials are taken together, before the recurrence needs them
constexpr int64_t row_groups = 16;  // partial sums of parameter gradients: as many whatever the threads, so they add up alike

// Below it, digits of c may have been lost to underflow.
template <class Real> constexpr Real least = sizeof(Real) == 4 ? Real(1e-25) : Real(1e-250);

struct Times {
  template <class V> static ELMAN_INLINE V add(V sum, V a, V x) { return fma(a, x, sum); }
  template <class V> static ELMAN_INLINE V join(V a, V b) { return a + b; }
  template <class Real> static constexpr Real zero = Real(0);
};

// e^(x - m), 1 at most.
template <class Real>
ELMAN_INLINE Vec<Real> relative(Vec<Real> x, Real m) {
  const Vec<Real> d = x - m;
  return decay<Real>(d > Real(0) ? Vec<Real>{} : d);
}

// The likelihoods of `count` steps, each relative to its best: l (count, padded), m (count).
template <class Real>
void likelihoods(const Real* x, int64_t count, Width<Real> w, Real* l, Real* m) {
  for (int64_t t = 0; t < count; ++t, x += w.K, l += w.padded) {
    read(x, w.K, l, w.padded, -infinity<Real>);
    m[t] = largest(l, w.padded);
    if (m[t] == -infinity<Real>) m[t] = 0;  // -inf minus -inf would be NaN
    for (int64_t k = 0; k < w.padded; k += lanes<Real>) store(l + k, relative<Real>(load<Vec<Real>>(l + k), m[t]));
  }
}

// Likelihoods once more, relative to the best among the states that s can be in; the new m, or 0 if there is none.
template <class Real>
Real rescale(const Real* x, const Real* s, Width<Real> w, Real* l) {
  Real m = -infinity<Real>;
  for (int64_t k = 0; k < w.K; ++k) m = s[k] > 0 && x[k] > m ? x[k] : m;
  if (m == -infinity<Real>) m = 0;
  read(x, w.K, l, w.padded, -infinity<Real>);
  for (int64_t k = 0; k < w.padded; k += lanes<Real>) store(l + k, relative<Real>(load<Vec<Real>>(l + k), m));
  return m;
}

// u = s * l, returns its sum.
template <class Real>
ELMAN_INLINE Real weigh(const Real* s, const Real* l, Real* u, int64_t padded) {
  Vec<Real> total{};
  for (int64_t k = 0; k < padded; k += lanes<Real>) {
    const Vec<Real> v = load<Vec<Real>>(s + k) * load<Vec<Real>>(l + k);
    store(u + k, v);
    total += v;
  }
  return sum_lanes<Real>(total);
}

template <class Real>
struct Scratch {
  Buffer<Real> l, m, s, u, v;
  explicit Scratch(Width<Real> w)
      : l(allocate<Real>(chunk * w.padded)),
        m(allocate<Real>(chunk)),
        s(allocate<Real>(w.padded + w.rows)),
        u(allocate<Real>(w.padded + w.rows)),
        v(allocate<Real>(w.padded + w.rows)) {
    for (Real* p : {s.get(), u.get(), v.get()}) std::fill(p, p + w.padded + w.rows, Real(0));
  }
};

// What a few steps of the filter read and write.
template <class Real>
struct Steps {
  const Real *x, *start, *a;
  const bool* reset;
  Real *p, *l, *shift, *scale;
};

// One step where the observation is hopeless for almost all of s: relative to what s can be in.
template <class Real>
Real weigh_again(const Steps<Real>& o, int64_t t, Width<Real> w, const Real* s, Real* u) {
  Real* l = o.l + t * w.padded;
  o.shift[t] = rescale(o.x + t * w.K, s, w, l);
  return weigh(s, l, u, w.padded);
}

// Nothing is left after what cannot be; a NaN stays one.
template <class Real>
ELMAN_INLINE Real inverse(Real c) {
  return c > 0 ? Real(1) / c : c;
}

template <class Real>
void steps(int64_t count, Width<Real> w, const Steps<Real>& o, Real* s, Real* u) {
  for (int64_t t = 0; t < count; ++t) {
    if (o.reset[t]) read(o.start, w.K, s, w.padded, Real(0));
    if (o.p) std::memcpy(o.p + t * w.K, s, w.K * sizeof(Real));
    Real c = weigh(s, o.l + t * w.padded, u, w.padded);
    if (!(c >= least<Real>)) c = weigh_again(o, t, w, s, u);
    o.scale[t] = c;
    product<Times>(o.a, u, w, s);
    const Real factor = inverse(c);
    for (int64_t k = 0; k < w.padded; k += lanes<Real>) store(s + k, Vec<Real>(load<Vec<Real>>(s + k) * factor));
  }
}

// The same, to the bit, for states that fit in C registers: what the next step waits for never goes through memory.
template <int C, int S, class Real>
void few_steps(int64_t count, Width<Real> w, const Steps<Real>& o, Real* in_memory, Real* u) {
  constexpr int L = lanes<Real>;
  Vec<Real> s[C];
  const auto fetch = [&] {
    for (int n = 0; n < C; ++n) s[n] = load<Vec<Real>>(in_memory + n * L);
  };
  fetch();
  for (int64_t t = 0; t < count; ++t) {
    if (o.reset[t]) {
      read(o.start, w.K, in_memory, w.padded, Real(0));
      fetch();
    }
    if (o.p)
      for (int n = 0; n < C && n * L < w.K; ++n) store_some(o.p + t * w.K + n * L, s[n], w.K - n * L);
    Vec<Real> total{};
#pragma GCC unroll 8
    for (int n = 0; n < C; ++n) {
      const Vec<Real> v = s[n] * load<Vec<Real>>(o.l + t * w.padded + n * L);
      store(u + n * L, v);
      total += v;
    }
    Real c = sum_lanes<Real>(total);
    if (!(c >= least<Real>)) {
      for (int n = 0; n < C; ++n) store(in_memory + n * L, s[n]);
      c = weigh_again(o, t, w, in_memory, u);
    }
    o.scale[t] = c;
    product_tile<Times, C, S>(o.a, u, w.rows, s);
    const Real factor = inverse(c);
#pragma GCC unroll 8
    for (int n = 0; n < C; ++n) s[n] *= factor;
  }
  for (int n = 0; n < C; ++n) store(in_memory + n * L, s[n]);
}

// Row b of the filter; `a` is the packed transition.
template <class Real>
void filter_row(const HmmInputs<Real>& in, const HmmOutputs<Real>& out, int64_t b, Width<Real> w, const Real* a,
                Scratch<Real>& z) {
  const Real* x = in.x + b * in.T * w.K;
  const bool* reset = in.reset + b * in.T;
  const int64_t length = in.lengths[b];
  Real *log_c = out.log_c + b * in.T, *p = out.p ? out.p + b * in.T * w.K : nullptr;
  Real *shift = out.shift + b * in.T, *scale = out.scale + b * in.T;
  Real *s = z.s.get(), *u = z.u.get();
  read(in.state + b * w.K, w.K, s, w.padded, Real(0));
  for (int64_t t0 = 0; t0 < length; t0 += chunk) {
    const int64_t count = std::min(chunk, length - t0);
    likelihoods(x + t0 * w.K, count, w, z.l.get(), shift + t0);
    const Steps<Real> o{x + t0 * w.K, in.start, a, reset + t0, p ? p + t0 * w.K : nullptr, z.l.get(), shift + t0, scale + t0};
    if (w.padded == lanes<Real>) few_steps<1, 4>(count, w, o, s, u);
    else if (w.padded == 2 * lanes<Real>) few_steps<2, 4>(count, w, o, s, u);
    else if (w.padded == 4 * lanes<Real>) few_steps<4, 2>(count, w, o, s, u);
    else steps(count, w, o, s, u);
    for (int64_t t = t0; t < t0 + count; t += lanes<Real>) {
      const int64_t some = t0 + count - t;
      store_some(log_c + t, Vec<Real>(load_some(shift + t, some) + logarithm<Real>(load_some(scale + t, some))), some);
    }
  }
  std::memcpy(out.last + b * w.K, s, w.K * sizeof(Real));
  std::fill(log_c + length, log_c + in.T, Real(0));
  if (p) std::fill(p + length * w.K, p + in.T * w.K, Real(0));
}

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
  const Real *x, *p, *shift, *scale, *glog, *gp, *glast;
  const bool* reset;
  int64_t length;
  Real *gx, *gstate;
};

// The gradient of one row. G = dL/ds[t+1] comes from the right:
//
//   r = exp(x - m) / c,  f = s r,  b = A G,  e = f (g + b - <f, b>),  gx = e,  G = gp + r (g + b - <f, b>)
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
  if (likelihood && mean > 0) return {onward / mean, g - onward};
  return {Real(1), g - mean};
}

template <class Real>
ELMAN_INLINE Vec<Real> part(const Real* row, int64_t k, int64_t K) {
  return k < K ? load_some(row + k, K - k) : Vec<Real>{};
}

// <f, b> of one step, f = s r.
template <class Real>
ELMAN_INLINE Real mean_of(const Real* s, const Real* r, const Real* b, Width<Real> w) {
  Vec<Real> total{};
  for (int64_t k = 0; k < w.K; k += lanes<Real>) total += part(s, k, w.K) * load<Vec<Real>>(r + k) * part(b, k, w.K);
  return sum_lanes<Real>(total);
}

// r (count, padded), zero where s cannot be, and f transposed, (K, chunk), unless that is null.
template <class Real>
void ratios(int64_t t0, int64_t count, Width<Real> w, const RowBack<Real>& o, Real* r, Real* ft, Real* f) {
  for (int64_t i = 0; i < count; ++i, r += w.padded) {
    const int64_t t = t0 + i;
    const Real c = o.scale[t], inverse = c > 0 ? Real(1) / c : Real(0);
    for (int64_t k = 0; k < w.padded; k += lanes<Real>) {
      const Vec<Real> s = part(o.p + t * w.K, k, w.K);
      const Vec<Real> rk = s > Real(0) ? relative<Real>(part(o.x + t * w.K, k, w.K), o.shift[t]) * inverse : Vec<Real>{};
      store(r + k, rk);
      store(f + k, Vec<Real>(s * rk));
    }
    for (int64_t k = 0; k < w.K && ft; ++k) ft[k * chunk + i] = f[k];
  }
}

// What the chain carries from step to step: G (padded), and g[t+1] if step t + 1 follows on step t.
template <class Real>
struct Link {
  Real *G, onward;
};

// G of every step of a chunk, to gs unless that is null, and b, to gx for `finish`. C > 0: b stays in C registers on its way to G.
template <int C, int S, class Real>
void chain(int64_t t0, int64_t count, Width<Real> w, const RowBack<Real>& o, const Real* at, const Real* r, Real* gstart,
           Real* gs, Real* onwards, Real* b, Link<Real>& link) {
  constexpr int L = lanes<Real>;
  const bool likelihood = !o.gp && !o.glast;
  Real* G = link.G;
  for (int64_t i = count - 1; i >= 0; --i) {
    const int64_t t = t0 + i;
    if (t + 1 < o.length && o.reset[t + 1]) {
      for (int64_t k = 0; k < w.K; ++k) gstart[k] += G[k];
      std::fill(G, G + w.padded, Real(0));
      link.onward = 0;
    }
    for (int64_t k = 0; k < w.padded && gs; k += L) store(gs + k * chunk + i * L, load<Vec<Real>>(G + k));
    Vec<Real> y[C > 0 ? C : 1];
    if constexpr (C > 0) product_tile<Times, C, S>(at, G, w.rows, y);
    else product<Times>(at, G, w, b);
    const auto bk = [&](int64_t k) { return C > 0 ? y[k / L] : load<Vec<Real>>(b + k); };
    for (int64_t k = 0; k < w.K; k += L) store_some(o.gx + t * w.K + k, bk(k), w.K - k);
    const Real g = o.glog[t];
    // The scale is 1 but for rounding, so the chain need not wait for it at every step.
    Affine<Real> by{Real(1), Real(0)};
    if (!likelihood || t % 16 == 0 || link.onward != g || !(o.scale[t] > 0))
      by = affine(likelihood, mean_of(o.p + t * w.K, r + i * w.padded, o.gx + t * w.K, w), link.onward, g);
    for (int64_t k = 0; k < w.padded; k += L)
      store(G + k, Vec<Real>(load<Vec<Real>>(r + i * w.padded + k) * fma(bk(k), splat<Real>(by.scale), splat<Real>(by.base))));
    if (o.gp)
      for (int64_t k = 0; k < w.K; ++k) G[k] += o.gp[t * w.K + k];
    onwards[i] = link.onward;
    link.onward = o.scale[t] > 0 ? g : Real(0);
  }
}

// gx = f (scale b + base), where it finds b.
template <class Real>
void finish(int64_t t0, int64_t count, Width<Real> w, const RowBack<Real>& o, const Real* r, const Real* onwards) {
  for (int64_t i = 0; i < count; ++i, r += w.padded) {
    const Real* s = o.p + (t0 + i) * w.K;
    Real* gx = o.gx + (t0 + i) * w.K;
    const Affine<Real> by = affine(!o.gp && !o.glast, mean_of(s, r, gx, w), onwards[i], o.glog[t0 + i]);
    for (int64_t k = 0; k < w.K; k += lanes<Real>) {
      const Vec<Real> f = part(s, k, w.K) * load<Vec<Real>>(r + k);
      store_some(gx + k, Vec<Real>(f * fma(part(gx, k, w.K), splat<Real>(by.scale), splat<Real>(by.base))), w.K - k);
    }
  }
}

template <class Real>
void filter_row_back(int64_t steps, Width<Real> w, const RowBack<Real>& o, const Real* at, Real* gstart, Real* ga,
                     Scratch<Real>& z, Real* ft, Real* gs) {
  Real *G = z.u.get(), *r = z.l.get();
  std::fill(G, G + w.padded, Real(0));
  if (o.glast) std::memcpy(G, o.glast, w.K * sizeof(Real));
  Link<Real> link{G, Real(0)};
  for (int64_t end = o.length; end > 0;) {
    const int64_t t0 = (end - 1) / chunk * chunk, count = end - t0;
    ratios(t0, count, w, o, r, ft, z.s.get());
    const auto run = [&](auto chained) { chained(t0, count, w, o, at, r, gstart, gs, z.m.get(), z.v.get(), link); };
    if (w.padded == lanes<Real>) run(chain<1, 4, Real>);
    else if (w.padded == 2 * lanes<Real>) run(chain<2, 4, Real>);
    else if (w.padded == 4 * lanes<Real>) run(chain<4, 2, Real>);
    else run(chain<0, 1, Real>);
    finish(t0, count, w, o, r, z.m.get());
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
void hmm_filter(const HmmInputs<Real>& in, const HmmOutputs<Real>& out, int threads) {
  const Width<Real> w(in.K);
  const Buffer<Real> a = pack(in.transition, in.K, 1, w, Real(0));
  parallel(threads_for(in, threads), in.B, [&](int64_t first, int64_t end) {
    Scratch<Real> z(w);
    for (int64_t b = first; b < end; ++b) filter_row(in, out, b, w, a.get(), z);
  });
}

template <class Real>
void hmm_filter_back(const HmmInputs<Real>& in, const HmmArriving<Real>& from, const HmmGradients<Real>& to, int threads) {
  const int64_t steps = in.T, K = in.K;
  const Width<Real> w(K);
  const Buffer<Real> at = pack(in.transition, 1, K, w, Real(0));
  const int64_t groups = std::min(in.B, row_groups);
  parallel(threads_for(in, threads), groups, [&](int64_t first, int64_t end) {
    Scratch<Real> z(w);
    Buffer<Real> ft, gs, sum;
    if (to.ga)
      ft = allocate<Real>(chunk * w.padded), gs = allocate<Real>(chunk * w.padded), sum = allocate<Real>(w.padded * w.padded);
    for (int64_t i = first; i < end; ++i) {
      Real* gstart = to.gstart + i * K;
      if (to.ga) std::fill(sum.get(), sum.get() + w.padded * w.padded, Real(0));
      std::fill(gstart, gstart + K, Real(0));
      for (int64_t b = in.B * i / groups; b < in.B * (i + 1) / groups; ++b) {
        RowBack<Real> row;
        row.x = in.x + b * steps * K;
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
        filter_row_back(steps, w, row, at.get(), gstart, sum.get(), z, ft.get(), gs.get());
      }
      for (int64_t k = 0; k < K && to.ga; ++k) std::memcpy(to.ga + (i * K + k) * K, sum.get() + k * w.padded, K * sizeof(Real));
    }
  });
}

#define ELMAN_INSTANCE(Real)                 \
  template HmmFilter<Real> hmm_filter<Real>; \
  template HmmFilterBack<Real> hmm_filter_back<Real>;
ELMAN_INSTANCE(float)
ELMAN_INSTANCE(double)

}  // namespace elman::ELMAN_NS
