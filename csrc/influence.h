// The exact rule of learning online, for diagonal cells.
#pragma once
#include "parallel.h"
#include "simd.h"

namespace elman::ELMAN_NS {

// The influence of weights on a state, carried forward, where each entry of a weight has one number of the state for each of C
// colours: e' = J e + I, and the gradient sum over rows and colours of share e, of the e that came in, in one pass. e and e'
// (B, C, R, W), of W entries side by side that have the same number; factors J (B, C, C, R), to a colour from a colour; share
// (B, C, R). I is immediate (B, C, R, W), or with right (B, W) the outer product of immediate (B, C, R) and that. gradient (R, W).
template <class Real>
struct Influence {
  int64_t B, C, R, W;
  Real *after, *gradient;
  const Real *e, *factors, *share, *immediate, *right;

  // Threads have entries of the weight, all rows of them: the sum runs in the order of the rows whatever the threads.
  void run(int threads) const {
    std::fill_n(gradient, R * W, Real(0));
    const int64_t work = B * C * C * R * W;
    parallel(threads_for(work, WorthAThread::elements, threads), R, [&](int64_t first, int64_t end) {
      for (int64_t b = 0; b < B; ++b)
        for (int64_t c = 0; c < C; ++c) W == 1 ? numbers(b, c, first, end) : entries(b, c, first, end);
    });
  }

 private:
  // W entries for each of [first, end).
  void entries(int64_t b, int64_t c, int64_t first, int64_t end) const {
    const int64_t at = (b * C + c) * R;
    for (int64_t r = first; r < end; ++r) {
      const Real l = right ? immediate[at + r] : Real(0), s = share[at + r];
      const Real *whole = immediate + (at + r) * W, *times = right ? right + b * W : nullptr, *J = factors + at * C + r;
      const Real *before = e + (b * C * R + r) * W, *own = e + (at + r) * W;
      Real *to = after + (at + r) * W, *g = gradient + r * W;
      spans(0, W, [&](auto v, int64_t w) {
        using V = decltype(v);
        V sum = right ? load<V>(times + w) * l : load<V>(whole + w);
        for (int64_t d = 0; d < C; ++d) sum = fma(V{} + J[d * R], load<V>(before + d * R * W + w), sum);
        store(g + w, fma(V{} + s, load<V>(own + w), load<V>(g + w)));
        store(to + w, sum);
      });
    }
  }

  // One entry for each of them: entries side by side.
  void numbers(int64_t b, int64_t c, int64_t first, int64_t end) const {
    const int64_t at = (b * C + c) * R;
    const Real *J = factors + at * C, *before = e + b * C * R;
    spans(first, end, [&](auto v, int64_t r) {
      using V = decltype(v);
      V sum = load<V>(immediate + at + r);
      if (right) sum = sum * right[b];
      for (int64_t d = 0; d < C; ++d) sum = fma(load<V>(J + d * R + r), load<V>(before + d * R + r), sum);
      store(gradient + r, fma(load<V>(share + at + r), load<V>(e + at + r), load<V>(gradient + r)));
      store(after + at + r, sum);
    });
  }

  template <class F>
  static ELMAN_INLINE void spans(int64_t first, int64_t end, const F& f) {
    int64_t i = first;
    for (; i + lanes<Real> <= end; i += lanes<Real>) f(Vec<Real>{}, i);
    for (; i < end; ++i) f(Real{}, i);
  }
};

}  // namespace elman::ELMAN_NS
