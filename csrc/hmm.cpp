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
template <class T> constexpr T least = sizeof(T) == 4 ? T(1e-25) : T(1e-250);

struct Times {
  template <class V> static ELMAN_INLINE V add(V sum, V a, V x) { return fma(a, x, sum); }
  template <class V> static ELMAN_INLINE V join(V a, V b) { return a + b; }
  template <class T> static constexpr T zero = T(0);
};

// e^(x - m), 1 at most.
template <class T>
ELMAN_INLINE Vec<T> relative(Vec<T> x, T m) {
  const Vec<T> d = x - m;
  return decay<T>(d > T(0) ? Vec<T>{} : d);
}

// The likelihoods of `count` steps, each relative to its best: l (count, padded), m (count).
template <class T>
void likelihoods(const T* x, int64_t count, Width<T> w, T* l, T* m) {
  for (int64_t t = 0; t < count; ++t, x += w.K, l += w.padded) {
    read(x, w.K, l, w.padded, -infinity<T>);
    m[t] = largest(l, w.padded);
    if (m[t] == -infinity<T>) m[t] = 0;  // -inf minus -inf would be NaN
    for (int64_t k = 0; k < w.padded; k += lanes<T>) store(l + k, relative<T>(load<Vec<T>>(l + k), m[t]));
  }
}

// Likelihoods once more, relative to the best among the states that s can be in; the new m, or 0 if there is none.
template <class T>
T rescale(const T* x, const T* s, Width<T> w, T* l) {
  T m = -infinity<T>;
  for (int64_t k = 0; k < w.K; ++k) m = s[k] > 0 && x[k] > m ? x[k] : m;
  if (m == -infinity<T>) m = 0;
  read(x, w.K, l, w.padded, -infinity<T>);
  for (int64_t k = 0; k < w.padded; k += lanes<T>) store(l + k, relative<T>(load<Vec<T>>(l + k), m));
  return m;
}

// u = s * l, returns its sum.
template <class T>
ELMAN_INLINE T weigh(const T* s, const T* l, T* u, int64_t padded) {
  Vec<T> total{};
  for (int64_t k = 0; k < padded; k += lanes<T>) {
    const Vec<T> v = load<Vec<T>>(s + k) * load<Vec<T>>(l + k);
    store(u + k, v);
    total += v;
  }
  return sum_lanes<T>(total);
}

template <class T>
struct Scratch {
  Buffer<T> l, m, s, u, v;
  explicit Scratch(Width<T> w)
      : l(allocate<T>(chunk * w.padded)), m(allocate<T>(chunk)), s(allocate<T>(w.padded + w.rows)),
        u(allocate<T>(w.padded + w.rows)), v(allocate<T>(w.padded + w.rows)) {
    for (T* p : {s.get(), u.get(), v.get()}) std::fill(p, p + w.padded + w.rows, T(0));
  }
};

// What a few steps of the filter read and write.
template <class T>
struct Steps {
  const T *x, *start, *a;
  const bool* reset;
  T *p, *l, *shift, *scale;
};

// One step where the observation is hopeless for almost all of s: relative to what s can be in.
template <class T>
T weigh_again(const Steps<T>& o, int64_t t, Width<T> w, const T* s, T* u) {
  T* l = o.l + t * w.padded;
  o.shift[t] = rescale(o.x + t * w.K, s, w, l);
  return weigh(s, l, u, w.padded);
}

// Nothing is left after what cannot be; a NaN stays one.
template <class T>
ELMAN_INLINE T inverse(T c) {
  return c > 0 ? T(1) / c : c;
}

template <class T>
void steps(int64_t count, Width<T> w, const Steps<T>& o, T* s, T* u) {
  for (int64_t t = 0; t < count; ++t) {
    if (o.reset[t]) read(o.start, w.K, s, w.padded, T(0));
    if (o.p) std::memcpy(o.p + t * w.K, s, w.K * sizeof(T));
    T c = weigh(s, o.l + t * w.padded, u, w.padded);
    if (!(c >= least<T>)) c = weigh_again(o, t, w, s, u);
    o.scale[t] = c;
    product<Times>(o.a, u, w, s);
    const T factor = inverse(c);
    for (int64_t k = 0; k < w.padded; k += lanes<T>) store(s + k, Vec<T>(load<Vec<T>>(s + k) * factor));
  }
}

// The same, to the bit, for states that fit in C registers: what the next step waits for never goes through memory.
template <int C, int S, class T>
void few_steps(int64_t count, Width<T> w, const Steps<T>& o, T* in_memory, T* u) {
  constexpr int L = lanes<T>;
  Vec<T> s[C];
  const auto fetch = [&] {
    for (int n = 0; n < C; ++n) s[n] = load<Vec<T>>(in_memory + n * L);
  };
  fetch();
  for (int64_t t = 0; t < count; ++t) {
    if (o.reset[t]) {
      read(o.start, w.K, in_memory, w.padded, T(0));
      fetch();
    }
    if (o.p)
      for (int n = 0; n < C && n * L < w.K; ++n) store_some(o.p + t * w.K + n * L, s[n], w.K - n * L);
    Vec<T> total{};
#pragma GCC unroll 8
    for (int n = 0; n < C; ++n) {
      const Vec<T> v = s[n] * load<Vec<T>>(o.l + t * w.padded + n * L);
      store(u + n * L, v);
      total += v;
    }
    T c = sum_lanes<T>(total);
    if (!(c >= least<T>)) {
      for (int n = 0; n < C; ++n) store(in_memory + n * L, s[n]);
      c = weigh_again(o, t, w, in_memory, u);
    }
    o.scale[t] = c;
    product_tile<Times, C, S>(o.a, u, w.rows, s);
    const T factor = inverse(c);
#pragma GCC unroll 8
    for (int n = 0; n < C; ++n) s[n] *= factor;
  }
  for (int n = 0; n < C; ++n) store(in_memory + n * L, s[n]);
}

// Row b of the filter; `a` is the packed transition.
template <class T>
void filter_row(const HmmInputs<T>& in, const HmmOutputs<T>& out, int64_t b, Width<T> w, const T* a, Scratch<T>& z) {
  const T* x = in.x + b * in.T * w.K;
  const bool* reset = in.reset + b * in.T;
  const int64_t length = in.lengths[b];
  T *log_c = out.log_c + b * in.T, *p = out.p ? out.p + b * in.T * w.K : nullptr;
  T *shift = out.shift + b * in.T, *scale = out.scale + b * in.T;
  T *s = z.s.get(), *u = z.u.get();
  read(in.state + b * w.K, w.K, s, w.padded, T(0));
  for (int64_t t0 = 0; t0 < length; t0 += chunk) {
    const int64_t count = std::min(chunk, length - t0);
    likelihoods(x + t0 * w.K, count, w, z.l.get(), shift + t0);
    const Steps<T> o{x + t0 * w.K, in.start, a, reset + t0, p ? p + t0 * w.K : nullptr, z.l.get(), shift + t0, scale + t0};
    if (w.padded == lanes<T>) few_steps<1, 4>(count, w, o, s, u);
    else if (w.padded == 2 * lanes<T>) few_steps<2, 4>(count, w, o, s, u);
    else if (w.padded == 4 * lanes<T>) few_steps<4, 2>(count, w, o, s, u);
    else steps(count, w, o, s, u);
    for (int64_t t = t0; t < t0 + count; t += lanes<T>) {
      const int64_t some = t0 + count - t;
      store_some(log_c + t, Vec<T>(load_some(shift + t, some) + logarithm<T>(load_some(scale + t, some))), some);
    }
  }
  std::memcpy(out.last + b * w.K, s, w.K * sizeof(T));
  std::fill(log_c + length, log_c + in.T, T(0));
  if (p) std::fill(p + length * w.K, p + in.T * w.K, T(0));
}

// ga += sum_t f[t] g[t]^T over `count` steps: ft (rows, chunk) transposed, g [vector of columns][chunk][lanes].
template <int C, class T>
ELMAN_INLINE void accumulate_columns(const T* ft, const T* g, int64_t count, int64_t j, Width<T> w, T* ga) {
  constexpr int L = lanes<T>;
  row_tiles<4>(0, w.K, [&](auto R, int64_t i) {
    constexpr int rows = decltype(R)::value;
    Vec<T> sum[rows][C];
    for (int r = 0; r < rows; ++r)
      for (int n = 0; n < C; ++n) sum[r][n] = load<Vec<T>>(ga + (i + r) * w.padded + j + n * L);
    tile<rows, C, 1>(sum, g + j * chunk, chunk * L, ft + i * chunk, chunk, count);
    for (int r = 0; r < rows; ++r)
      for (int n = 0; n < C; ++n) store(ga + (i + r) * w.padded + j + n * L, sum[r][n]);
  });
}

template <class T>
void accumulate(const T* ft, const T* g, int64_t count, Width<T> w, T* ga) {
  int64_t j = 0;
  for (; j + 2 * lanes<T> <= w.padded; j += 2 * lanes<T>) accumulate_columns<2>(ft, g, count, j, w, ga);
  if (j < w.padded) accumulate_columns<1>(ft, g, count, j, w, ga);
}

// What the backward pass of a row reads and writes, at the row.
template <class T>
struct RowBack {
  const T *x, *p, *shift, *scale, *glog, *gp, *glast;
  const bool* reset;
  int64_t length;
  T *gx, *gstate;
};

// The gradient of one row. G = dL/ds[t+1] comes from the right:
//
//   r = exp(x - m) / c,  f = s r,  b = A G,  e = f (g + b - <f, b>),  gx = e,  G = gp + r (g + b - <f, b>)
//
// <f, b> is known if only log_c has a gradient: it is g[t+1]. Then b is scaled to agree, and posteriors sum to one.
// What does not wait for the step to the right is done for a whole chunk at once: r and f before the chain, gx after it.
// How b enters: scale * b + base.
template <class T>
struct Affine {
  T scale, base;
};

template <class T>
ELMAN_INLINE Affine<T> affine(bool likelihood, T mean, T onward, T g) {
  if (likelihood && mean > 0) return {onward / mean, g - onward};
  return {T(1), g - mean};
}

template <class T>
ELMAN_INLINE Vec<T> part(const T* row, int64_t k, int64_t K) {
  return k < K ? load_some(row + k, K - k) : Vec<T>{};
}

// <f, b> of one step, f = s r.
template <class T>
ELMAN_INLINE T mean_of(const T* s, const T* r, const T* b, Width<T> w) {
  Vec<T> total{};
  for (int64_t k = 0; k < w.K; k += lanes<T>) total += part(s, k, w.K) * load<Vec<T>>(r + k) * part(b, k, w.K);
  return sum_lanes<T>(total);
}

// r (count, padded), zero where s cannot be, and f transposed, (K, chunk), unless that is null.
template <class T>
void ratios(int64_t t0, int64_t count, Width<T> w, const RowBack<T>& o, T* r, T* ft, T* f) {
  for (int64_t i = 0; i < count; ++i, r += w.padded) {
    const int64_t t = t0 + i;
    const T c = o.scale[t], inverse = c > 0 ? T(1) / c : T(0);
    for (int64_t k = 0; k < w.padded; k += lanes<T>) {
      const Vec<T> s = part(o.p + t * w.K, k, w.K);
      const Vec<T> rk = s > T(0) ? relative<T>(part(o.x + t * w.K, k, w.K), o.shift[t]) * inverse : Vec<T>{};
      store(r + k, rk);
      store(f + k, Vec<T>(s * rk));
    }
    for (int64_t k = 0; k < w.K && ft; ++k) ft[k * chunk + i] = f[k];
  }
}

// What the chain carries from step to step: G (padded), and g[t+1] if step t + 1 follows on step t.
template <class T>
struct Link {
  T *G, onward;
};

// G of every step of a chunk, to gs unless that is null, and b, to gx for `finish`. C > 0: b stays in C registers on its way to G.
template <int C, int S, class T>
void chain(int64_t t0, int64_t count, Width<T> w, const RowBack<T>& o, const T* at, const T* r, T* gstart, T* gs, T* onwards,
           T* b, Link<T>& link) {
  constexpr int L = lanes<T>;
  const bool likelihood = !o.gp && !o.glast;
  T* G = link.G;
  for (int64_t i = count - 1; i >= 0; --i) {
    const int64_t t = t0 + i;
    if (t + 1 < o.length && o.reset[t + 1]) {
      for (int64_t k = 0; k < w.K; ++k) gstart[k] += G[k];
      std::fill(G, G + w.padded, T(0));
      link.onward = 0;
    }
    for (int64_t k = 0; k < w.padded && gs; k += L) store(gs + k * chunk + i * L, load<Vec<T>>(G + k));
    Vec<T> y[C > 0 ? C : 1];
    if constexpr (C > 0) product_tile<Times, C, S>(at, G, w.rows, y);
    else product<Times>(at, G, w, b);
    const auto bk = [&](int64_t k) { return C > 0 ? y[k / L] : load<Vec<T>>(b + k); };
    for (int64_t k = 0; k < w.K; k += L) store_some(o.gx + t * w.K + k, bk(k), w.K - k);
    const T g = o.glog[t];
    // The scale is 1 but for rounding, so the chain need not wait for it at every step.
    Affine<T> by{T(1), T(0)};
    if (!likelihood || t % 16 == 0 || link.onward != g || !(o.scale[t] > 0))
      by = affine(likelihood, mean_of(o.p + t * w.K, r + i * w.padded, o.gx + t * w.K, w), link.onward, g);
    for (int64_t k = 0; k < w.padded; k += L)
      store(G + k, Vec<T>(load<Vec<T>>(r + i * w.padded + k) * fma(bk(k), splat<T>(by.scale), splat<T>(by.base))));
    if (o.gp)
      for (int64_t k = 0; k < w.K; ++k) G[k] += o.gp[t * w.K + k];
    onwards[i] = link.onward;
    link.onward = o.scale[t] > 0 ? g : T(0);
  }
}

// gx = f (scale b + base), where it finds b.
template <class T>
void finish(int64_t t0, int64_t count, Width<T> w, const RowBack<T>& o, const T* r, const T* onwards) {
  for (int64_t i = 0; i < count; ++i, r += w.padded) {
    const T* s = o.p + (t0 + i) * w.K;
    T* gx = o.gx + (t0 + i) * w.K;
    const Affine<T> by = affine(!o.gp && !o.glast, mean_of(s, r, gx, w), onwards[i], o.glog[t0 + i]);
    for (int64_t k = 0; k < w.K; k += lanes<T>) {
      const Vec<T> f = part(s, k, w.K) * load<Vec<T>>(r + k);
      store_some(gx + k, Vec<T>(f * fma(part(gx, k, w.K), splat<T>(by.scale), splat<T>(by.base))), w.K - k);
    }
  }
}

template <class T>
void filter_row_back(int64_t steps, Width<T> w, const RowBack<T>& o, const T* at, T* gstart, T* ga, Scratch<T>& z, T* ft, T* gs) {
  T *G = z.u.get(), *r = z.l.get();
  std::fill(G, G + w.padded, T(0));
  if (o.glast) std::memcpy(G, o.glast, w.K * sizeof(T));
  Link<T> link{G, T(0)};
  for (int64_t end = o.length; end > 0;) {
    const int64_t t0 = (end - 1) / chunk * chunk, count = end - t0;
    ratios(t0, count, w, o, r, ft, z.s.get());
    const auto run = [&](auto chained) { chained(t0, count, w, o, at, r, gstart, gs, z.m.get(), z.v.get(), link); };
    if (w.padded == lanes<T>) run(chain<1, 4, T>);
    else if (w.padded == 2 * lanes<T>) run(chain<2, 4, T>);
    else if (w.padded == 4 * lanes<T>) run(chain<4, 2, T>);
    else run(chain<0, 1, T>);
    finish(t0, count, w, o, r, z.m.get());
    if (ga) accumulate(ft, gs, count, w, ga);
    end = t0;
  }
  std::fill(o.gx + o.length * w.K, o.gx + steps * w.K, T(0));
  std::fill(o.gstate, o.gstate + w.K, T(0));
  if (o.length > 0 && o.reset[0])
    for (int64_t k = 0; k < w.K; ++k) gstart[k] += G[k];
  else std::memcpy(o.gstate, G, w.K * sizeof(T));
}

}  // namespace

template <class T>
void hmm_filter(const HmmInputs<T>& in, const HmmOutputs<T>& out, int threads) {
  const Width<T> w(in.K);
  const Buffer<T> a = pack(in.transition, in.K, 1, w, T(0));
  parallel(threads_for(in, threads), in.B, [&](int64_t first, int64_t end) {
    Scratch<T> z(w);
    for (int64_t b = first; b < end; ++b) filter_row(in, out, b, w, a.get(), z);
  });
}

template <class T>
void hmm_filter_back(const HmmInputs<T>& in, const HmmArriving<T>& from, const HmmGradients<T>& to, int threads) {
  const int64_t steps = in.T, K = in.K;
  const Width<T> w(K);
  const Buffer<T> at = pack(in.transition, 1, K, w, T(0));
  const int64_t groups = std::min(in.B, row_groups);
  parallel(threads_for(in, threads), groups, [&](int64_t first, int64_t end) {
    Scratch<T> z(w);
    Buffer<T> ft, gs, sum;
    if (to.ga) ft = allocate<T>(chunk * w.padded), gs = allocate<T>(chunk * w.padded), sum = allocate<T>(w.padded * w.padded);
    for (int64_t i = first; i < end; ++i) {
      T* gstart = to.gstart + i * K;
      if (to.ga) std::fill(sum.get(), sum.get() + w.padded * w.padded, T(0));
      std::fill(gstart, gstart + K, T(0));
      for (int64_t b = in.B * i / groups; b < in.B * (i + 1) / groups; ++b) {
        RowBack<T> row;
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
      for (int64_t k = 0; k < K && to.ga; ++k) std::memcpy(to.ga + (i * K + k) * K, sum.get() + k * w.padded, K * sizeof(T));
    }
  });
}

#define ELMAN_INSTANCE(T)              \
  template HmmFilter<T> hmm_filter<T>; \
  template HmmFilterBack<T> hmm_filter_back<T>;
ELMAN_INSTANCE(float)
ELMAN_INSTANCE(double)

}  // namespace elman::ELMAN_NS
