// Hidden Markov models: the forward filter. hmm_back.cpp has its gradient, which is the backward algorithm.
//
//   s[0] = state, or start at a reset;   u = s[t] * exp(x[t] - m),  c = sum u,  log_c[t] = m + log c,  s[t+1] = A^T u / c
//
// s[t+1] is the prediction p[t] that comes out. Scaled, not in log space: m is the largest x of the step, so that only what is
// hopeless beside the best underflows. Where almost all of s lies on such states, m is the largest x among those that s can be
// in, and nothing underflows together. A state that underflows is lost all the same, and if it cannot be reached again it may
// matter later: a row where that can have happened is done again in logarithms (hmm_logs.h), if the caller wants to know.
// A row is computed by one thread, or each of its columns by one, and the order of its sums depends on K alone: its bits do not
// depend on the batch.
#include <atomic>

#include "hmm.h"
#include "hmm_logs.h"
#include "steps.h"

namespace elman::ELMAN_NS {
namespace {

// Below it, digits of c may have been lost to underflow.
template <class Real> constexpr Real least = sizeof(Real) == 4 ? Real(1e-25) : Real(1e-250);

// A product that underflows is below the smallest normal number, so a sum above this one has lost no digit to it.
template <class Real> constexpr Real sound = std::numeric_limits<Real>::min() * (sizeof(Real) == 4 ? Real(1e10) : Real(1e20));

// What has underflowed matters again once it has gained this much, in logarithms, on what has not: less than the smallest normal
// number is short of 1 by (87 and 708), with room for digits and for as many states and steps as there may be.
template <class Real> constexpr Real catches_up = sizeof(Real) == 4 ? Real(50) : Real(650);

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

// What a few steps of the filter read and write.
template <class Real>
struct Stretch {
  const Real *x, *start, *a;
  const bool* reset;
  Real *p, *l, *shift, *scale;  // p and l (count, padded)
  const Real* outside;
};

// One step where the observation is hopeless for almost all of s: relative to what s can be in. Also the new shift.
template <class Real>
Real weigh_again(const Stretch<Real>& o, int64_t t, Width<Real> w, const Real* s, Real* u, Real& shift) {
  const Buffer<Real> l = allocate<Real>(w.padded);
  shift = rescale(o.x + t * w.K, s, w, l.get());
  return weigh(s, l.get(), u, w.padded);
}

// Nothing is left after what cannot be; a NaN stays one.
template <class Real>
ELMAN_INLINE Real inverse(Real c) {
  return c > 0 ? Real(1) / c : c;
}

template <class Real>
ELMAN_INLINE Vec<Real> lesser(Vec<Real> a, Vec<Real> b) {
  return a < b ? a : b;
}

template <class Real>
ELMAN_INLINE bool all_sound(Vec<Real> lowest) {
  return largest_lane<Real>(-lowest) <= -sound<Real>;
}

// Takes `count` steps; whether every state stayed sound. Threads divide the columns of the matrix, and meet after every step: the
// rest of a step each of them does for itself, in a u of its own, and the first one writes what there is besides p.
template <class Real>
bool steps(int64_t count, Width<Real> w, const Stretch<Real>& o, Real* s, Real* u, int threads) {
  std::atomic<bool> stays_sound{true};
  team(threads, [&](Member member) {
    const bool writes = member.thread == 0;
    const Buffer<Real> own = zeros<Real>(writes ? 0 : w.padded + w.rows), start = allocate<Real>(w.padded);
    Real *weighed = writes ? u : own.get(), shift;
    const Real* now = s;
    Vec<Real> lowest = splat<Real>(Real(1));
    for (int64_t t = 0; t < count; ++t) {
      if (o.reset[t]) read(o.start, w.K, start.get(), w.padded, Real(0)), now = start.get();
      Real c = weigh(now, o.l + t * w.padded, weighed, w.padded), *after = o.p + t * w.padded;
      if (!(c >= least<Real>)) {
        c = weigh_again(o, t, w, now, weighed, shift);
        if (writes) o.shift[t] = shift;
      }
      if (writes) o.scale[t] = c;
      const Columns mine = columns(w, member);
      product<Times>(o.a, weighed, w, after, mine);
      const Real factor = inverse(c);
      for (int64_t k = mine.first; k < mine.end; k += lanes<Real>) {
        const Vec<Real> v = load<Vec<Real>>(after + k);
        lowest = lesser<Real>(v + load<Vec<Real>>(o.outside + k), lowest);
        store(after + k, Vec<Real>(v * factor));
      }
      now = after;
      if (!member.meet()) break;
    }
    if (!all_sound<Real>(lowest)) stays_sound = false;
  });
  std::memcpy(s, o.p + (count - 1) * w.padded, w.padded * sizeof(Real));
  return stays_sound;
}

// The same, to the bit, for states that fit in C registers: what the next step waits for never goes through memory.
template <int C, int S, class Real>
bool few_steps(int64_t count, Width<Real> w, const Stretch<Real>& o, Real* in_memory, Real* u) {
  constexpr int L = lanes<Real>;
  Vec<Real> s[C], lowest = splat<Real>(Real(1));
  const auto fetch = [&] {
    for (int n = 0; n < C; ++n) s[n] = load<Vec<Real>>(in_memory + n * L);
  };
  fetch();
  for (int64_t t = 0; t < count; ++t) {
    if (o.reset[t]) {
      read(o.start, w.K, in_memory, w.padded, Real(0));
      fetch();
    }
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
      c = weigh_again(o, t, w, in_memory, u, o.shift[t]);
    }
    o.scale[t] = c;
    product_tile<Times, C, S>(o.a, u, w.rows, s);
    const Real factor = inverse(c);
#pragma GCC unroll 8
    for (int n = 0; n < C; ++n) {
      lowest = lesser<Real>(s[n] + load<Vec<Real>>(o.outside + n * L), lowest);
      s[n] *= factor;
      store(o.p + t * w.padded + n * L, s[n]);
    }
  }
  for (int n = 0; n < C; ++n) store(in_memory + n * L, s[n]);
  return all_sound<Real>(lowest);
}

// The same for few states, whose transitions fit in registers too: another order of the sums, but always this one.
template <int C, int R, class Real>
bool fewest_steps(int64_t count, Width<Real> w, const Stretch<Real>& o, Real* in_memory, Real* again) {
  constexpr int L = lanes<Real>;
  const Matrix<C, R, Real> a(o.a, w);
  Vec<Real> s[C], u[C], outside[C], lowest = splat<Real>(Real(1));
  const auto fetch = [&](Vec<Real>(&to)[C], const Real* from) {
    for (int n = 0; n < C; ++n) to[n] = load<Vec<Real>>(from + n * L);
  };
  fetch(s, in_memory), fetch(outside, o.outside);
  for (int64_t t = 0; t < count; ++t) {
    if (o.reset[t]) {
      read(o.start, w.K, in_memory, w.padded, Real(0));
      fetch(s, in_memory);
    }
    Vec<Real> total{};
    for (int n = 0; n < C; ++n) {
      u[n] = s[n] * load<Vec<Real>>(o.l + t * w.padded + n * L);
      total += u[n];
    }
    Real c = fold<std::min(R, L) / 2>(total, std::make_integer_sequence<int, L>{})[0];  // lanes from R on are zero
    if (!(c >= least<Real>)) {
      for (int n = 0; n < C; ++n) store(in_memory + n * L, s[n]);
      c = weigh_again(o, t, w, in_memory, again, o.shift[t]);
      fetch(u, again);
    }
    o.scale[t] = c;
    a.times(u, s);
    const Real factor = inverse(c);
    for (int n = 0; n < C; ++n) {
      lowest = lesser<Real>(s[n] + outside[n], lowest);
      s[n] *= factor;
      store(o.p + t * w.padded + n * L, s[n]);
    }
  }
  for (int n = 0; n < C; ++n) store(in_memory + n * L, s[n]);
  return all_sound<Real>(lowest);
}

// Follows what may have underflowed in a row, from the first unsound step of an episode on: how much it can have gained on the
// rest. A step gives to no state more than its best likelihood, and takes log c from all.
template <class Real>
struct Gain {
  bool follows = false, matters = false;
  Real gained = 0;

  void add(int64_t count, bool stays_sound, const bool* reset, const Real* best, const Real* log_c) {
    for (int64_t t = 0; t < count && (follows || !stays_sound); ++t) {
      if (reset[t]) follows = false;
      if (!follows) gained = 0, follows = !stays_sound;
      gained += best[t] - log_c[t];
      matters |= gained > catches_up<Real>;
    }
  }
};

// Row b of the filter, by the packed transition `a`: whether a state may have become too improbable for a number and have
// mattered later.
template <class Real>
bool filter_row(const HmmInputs<Real>& in, const HmmOutputs<Real>& out, int64_t b, Width<Real> w, const Real* a,
                Scratch<Real>& z, int threads) {
  const Real* x = in.x + b * in.T * w.K;
  const bool* reset = in.reset + b * in.T;
  const int64_t length = in.lengths[b];
  Real *log_c = out.log_c + b * in.T, *p = out.p ? out.p + b * in.T * w.K : nullptr;
  Real *shift = out.shift + b * in.T, *scale = out.scale + b * in.T;
  Real *s = z.s.get(), *u = z.u.get(), *best = z.m.get();
  Gain<Real> gain;
  read(in.state + b * w.K, w.K, s, w.padded, Real(0));
  for (int64_t t0 = 0; t0 < length; t0 += chunk) {
    const int64_t count = std::min(chunk, length - t0);
    likelihoods(x + t0 * w.K, count, w, z.l.get(), shift + t0, z.p.get());
    std::memcpy(best, shift + t0, count * sizeof(Real));
    const Stretch<Real> o{x + t0 * w.K, in.start, a, reset + t0, z.p.get(), z.l.get(), shift + t0, scale + t0, z.outside.get()};
    bool stays_sound = true;
    const auto fewest = [&](auto C, auto R) { stays_sound = fewest_steps<C.value, R.value>(count, w, o, s, u); };
    if (!in_registers(w, fewest))
      in_vectors(w, [&](auto C, auto A) {
        if constexpr (C.value > 0) stays_sound = few_steps<C.value, A.value>(count, w, o, s, u);
        else stays_sound = steps(count, w, o, s, u, threads);
      });
    for (int64_t t = t0; t < t0 + count; t += lanes<Real>) {
      const int64_t some = t0 + count - t;
      store_some(log_c + t, Vec<Real>(load_some(shift + t, some) + logarithm<Real>(load_some(scale + t, some))), some);
    }
    if (p) narrow(z.p.get(), count, w, p + t0 * w.K);
    gain.add(count, stays_sound, reset + t0, best, log_c + t0);
  }
  std::memcpy(out.last + b * w.K, s, w.K * sizeof(Real));
  std::fill(log_c + length, log_c + in.T, Real(0));
  if (p) std::fill(p + length * w.K, p + in.T * w.K, Real(0));
  return gain.matters;
}

}  // namespace

template <class Real>
void hmm_filter(const HmmInputs<Real>& in, const HmmOutputs<Real>& out, int threads) {
  const Width<Real> w(in.K);
  const Buffer<Real> a = pack(in.transition, in.K, 1, w, Real(0));
  const LogChain<Real> logs(in, w, out.lost);
  const int within = threads_within(in, w, threads);
  parallel(threads_for(in, threads), in.B, [&](int64_t first, int64_t end) {
    Scratch<Real> z(w, in.T, false);
    for (int64_t b = first; b < end; ++b) {
      const bool matters = filter_row(in, out, b, w, a.get(), z, within);
      if (out.lost && (out.lost[b] = matters)) filter_row_in_logs(in, out, b, w, logs, z);
    }
  });
}

template <class Real>
int append(Program<Real>& program, const FilterOperation<Real>& o) {
  auto& steps = Steps<Real>::of(program);
  const Width<Real> w(steps.width(o.p));
  auto a = std::make_shared<Buffer<Real>>(pack(o.transition, w.K, 1, w, Real(0)));
  steps.add([=, x = o.x, p = o.p](Workspace<Real>& work) {
    Scratch<Real> z(w, 1, false);
    Real log_c, shift, scale;
    for (int64_t row = 0; row < work.rows; ++row) {
      Real* state = work.at(p, row);
      const HmmInputs<Real> in{1, 1, w.K, work.at(x, row), nullptr, nullptr, state, &one_step, &no_reset};
      filter_row<Real>(in, {&log_c, nullptr, &shift, &scale, state, nullptr}, 0, w, a->get(), z, 1);
    }
  });
  steps.costs(w.rows * w.padded + 32 * w.padded);  // an exponential for each
  return o.p;
}

#define ELMAN_INSTANCE(Real) template HmmFilter<Real> hmm_filter<Real>;
ELMAN_INSTANCE(float)
ELMAN_INSTANCE(double)
ELMAN_APPEND(FilterOperation)

}  // namespace elman::ELMAN_NS
