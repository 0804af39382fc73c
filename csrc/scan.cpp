// The linear scan h[t] = a[t] * h[t-1] + b[t], real and complex, forward and backward; the scan of a maximum; and the reversal of
// rows.
//
// Time is the outer loop and channels the inner one, so memory is walked in the order in which it lies; the previous
// state is read back from the output row just written (it is still in the first-level cache). Outputs that are larger than
// the caches are streamed past them, which saves reading what is overwritten; the state is then carried beside them.
// A reset or the end of a row is a branch, never a coefficient of zero: zero times infinity would be NaN.
// Complex numbers lie interleaved, as Torch stores them: to all but the products they are twice as many reals.
#include <utility>

#include "channels.h"
#include "steps.h"

namespace elman::ELMAN_NS {
namespace {

// The products of a number field, on V: a vector of elements, or a single Element in the tail.
template <class Real>
struct RealField {
  using Element = Real;

  template <class V>  // a * x + b
  static ELMAN_INLINE V product(V a, V x, V b) {
    return fma(a, x, b);
  }
  template <class V>  // conj(a) * x + b
  static ELMAN_INLINE V conj_product(V a, V x, V b) {
    return fma(a, x, b);
  }
};

// (ar + i ai)(xr + i xi) + b = [ar xr + (br - ai xi), ar xi + (bi + ai xr)]: two multiply-adds on a vector of pairs.
template <class Real>
struct ComplexField {
  typedef Real Element __attribute__((vector_size(2 * sizeof(Real))));

  template <class V>
  static ELMAN_INLINE V product(V a, V x, V b) {
    return apply(a, x, b, Real(-1), Lanes<V>{});
  }
  template <class V>
  static ELMAN_INLINE V conj_product(V a, V x, V b) {
    return apply(a, x, b, Real(1), Lanes<V>{});
  }

 private:
  template <class V>
  using Lanes = std::make_integer_sequence<int, sizeof(V) / sizeof(Real)>;

  template <class V, int... I>
  static ELMAN_INLINE V apply(V a, V x, V b, Real sign, std::integer_sequence<int, I...>) {
    const V real = shuffle<(I & ~1)...>(a), imaginary = shuffle<(I | 1)...>(a), swapped = shuffle<(I ^ 1)...>(x);
    return fuse(real, x, fuse(imaginary * V{(I % 2 ? -sign : sign)...}, swapped, b));
  }
  static ELMAN_INLINE Vec<Real> fuse(Vec<Real> a, Vec<Real> b, Vec<Real> c) { return fma(a, b, c); }
  template <class V>
  static ELMAN_INLINE V fuse(V a, V b, V c) {
    return V{fma(a[0], b[0], c[0]), fma(a[1], b[1], c[1])};
  }
};

// Steps after the one at hand whose cache lines are asked for, where a thread has a part of each row: the processor's own
// prefetchers lose the thread at every gap. (1,16384,256) on two threads, AVX2: 2.1 -> 1.5 ms.
constexpr int64_t ahead = 8;

template <class V, class Real>
ELMAN_INLINE void fetch(const Real* p) {
  if constexpr (sizeof(V) > 2 * sizeof(Real)) __builtin_prefetch(p);  // not number by number
}

// Whether h is streamed: if the set of instructions can, all that is read and written is more than `large`, and h is made of whole
// vectors. Less than that stays in the last cache, where whoever reads h finds it again. `large` was measured where that cache has
// 32 MB; others have more or less. (8,1024,256) complex, 34 MB: 0.28 ms, streamed 0.36; (8,2048,256) real,
// 50 MB: 0.29, streamed 0.26; (1,16384,256) real: 0.96, streamed 0.52.
template <class Real>
bool streams(const ScanInputs<Real>& in, const Real* h) {
#if !defined(__SSE2__)
  return false;
#endif
  constexpr int64_t large = int64_t(40) << 20;  // bytes
  const int64_t bytes = in.n.B * in.n.T * in.n.C * int64_t(sizeof(Real)) * (in.a.time ? 3 : 2);
  return bytes >= large && in.n.C % lanes<Real> == 0 && reinterpret_cast<uintptr_t>(h) % vector_bytes == 0;
}

template <bool streamed, class V, class Real>
ELMAN_INLINE void put(Real* to, V v) {
  streamed ? stream(to, v) : store(to, v);
}

// n.C and all strides count reals.
template <class Real, class Field, bool streamed>
void forward(const ScanInputs<Real>& in, const ScanOutputs<Real>& out, int threads) {
  const Dims n = in.n;
  Blocks(n, threads, streamed ? widest : INT64_MAX).run(n.B, [&](int64_t row, int64_t first, int64_t C) {
    Real carry[streamed ? widest : 1];
    if (streamed) copy(in.h0 + row * n.C + first, carry, C);
    const Real* at = in.a.data + row * in.a.row + first;
    const Real* bt = in.b.data + row * in.b.row + first;
    const Real* previous = streamed ? carry : in.h0 + row * n.C + first;
    Real* h = out.h + row * n.T * n.C + first;
    const bool* resets = in.reset + row * n.T;
    const int64_t length = in.lengths[row], a_time = in.a.time, b_time = in.b.time;
    const int64_t far = C < n.C ? ahead : 0;
    for (int64_t t = 0; t < length; ++t, at += a_time, bt += b_time, previous = streamed ? carry : h, h += n.C) {
      if (resets[t]) {
        copy(bt, h, C);
        if (streamed) copy(bt, carry, C);
        continue;
      }
      each<Real, typename Field::Element>(C, [=, next = carry](auto v, int64_t c) {
        using V = decltype(v);
        if (far) fetch<V>(at + far * a_time + c), fetch<V>(bt + far * b_time + c);
        if (far && !streamed) fetch<V>(h + far * n.C + c);
        const V now = Field::product(load<V>(at + c), load<V>(previous + c), load<V>(bt + c));
        put<streamed>(h + c, now);
        if (streamed) store(next + c, now);
      });
    }
    copy(previous, out.last + row * n.C + first, C);
    for (int64_t t = length; t < n.T; ++t, h += n.C) clear(h, C);
    if (streamed) finish_streams();
  });
}
template <class Real, class Field>
void forward(const ScanInputs<Real>& in, const ScanOutputs<Real>& out, int threads) {
  streams(in, out.h) ? forward<Real, Field, true>(in, out, threads) : forward<Real, Field, false>(in, out, threads);
}

// One row, one block of channels, going back in time. The gradient at the state before step t is carried in gh0, which
// is where it ends:   gb[t] = gh[t] + gh0,   ga[t] = conj(h[t-1]) gb[t],   gh0 = conj(a[t]) gb[t].
template <class Real, class Field>
struct Backward {
  Dims n;
  int64_t C, length;  // channels in the block, valid steps
  const bool* reset;
  const Real *a, *h0, *h, *gh, *glast;
  int64_t a_time, gh_time;
  Real* ga;     // (T, C) where sum is null
  double* sum;  // (C,), or null
  Real *gb, *gh0;

  template <class F>
  ELMAN_INLINE void each_channel(const F& f) const {
    each_down<Real, typename Field::Element>(C, f);
  }

  const Real* before(int64_t t) const { return t > 0 ? h + (t - 1) * n.C : h0; }

  // gb[t] and, unless a reset cuts them off, gh0 and f(V, c, gb[t])
  template <class F>
  ELMAN_INLINE void step(int64_t t, const F& f) const {
    const Real *at = a + t * a_time, *g = gh + t * gh_time, *x = h + t * n.C;
    Real *to = gb + t * n.C, *carry = gh0;
    const int64_t far = C < n.C ? ahead : 0, width = n.C, a_step = a_time, g_step = gh_time;
    if (reset[t]) {
      each_channel([=](auto v, int64_t c) {
        using V = decltype(v);
        store(to + c, V(load<V>(g + c) + load<V>(carry + c)));
      });
      return clear(carry, C);
    }
    each_channel([=](auto v, int64_t c) {
      using V = decltype(v);
      if (far) {
        fetch<V>(at - far * a_step + c), fetch<V>(g - far * g_step + c);
        fetch<V>(x - far * width + c), fetch<V>(to - far * width + c);
      }
      const V d = load<V>(g + c) + load<V>(carry + c);
      store(to + c, d);
      store(carry + c, Field::conj_product(load<V>(at + c), d, V{}));
      f(c, d);
    });
  }

  // ga (T, C)
  void coefficients() const {
    for (int64_t t = length - 1; t >= 0; --t) {
      Real* to = ga + t * n.C;
      if (reset[t]) clear(to, C);
      step(t, [to, x = before(t)](int64_t c, auto d) {
        using V = decltype(d);
        store(to + c, Field::conj_product(load<V>(x + c), d, V{}));
      });
    }
    for (int64_t t = length; t < n.T; ++t) clear(ga + t * n.C, C);
  }

  // sum (C,), C at most `widest`, the coefficients being constant: products are added up over a block of time, and blocks in
  // double, so that a long row does not lose the digits that one running float would.
  void constant_coefficients() const {
    constexpr int64_t block = 32;
    clear(sum, C);
    for (int64_t end = length; end > 0; end -= block) {
      Real part[widest] = {};
      for (int64_t t = end - 1; t >= std::max<int64_t>(end - block, 0); --t)
        step(t, [&part, x = before(t)](int64_t c, auto d) {
          using V = decltype(d);
          store(part + c, Field::conj_product(load<V>(x + c), d, load<V>(part + c)));
        });
      for (int64_t c = 0; c < C; ++c) sum[c] += double(part[c]);
    }
  }

  void run() const {
    copy(glast, gh0, C);
    sum ? constant_coefficients() : coefficients();
    for (int64_t t = length; t < n.T; ++t) clear(gb + t * n.C, C);
  }
};

template <class Real, class Field>
void backward(const ScanInputs<Real>& in, const ScanArriving<Real>& from, const ScanGradients<Real>& to, int threads) {
  const Dims n = in.n;
  Blocks(n, threads, to.sum ? widest : INT64_MAX).run(n.B, [&](int64_t row, int64_t first, int64_t C) {
    const int64_t state = row * n.C + first, sequence = row * n.T * n.C + first;
    Backward<Real, Field> b;
    b.n = n;
    b.C = C;
    b.length = in.lengths[row];
    b.reset = in.reset + row * n.T;
    b.a = in.a.data + row * in.a.row + first;
    b.a_time = in.a.time;
    b.h0 = in.h0 + state;
    b.h = from.h + sequence;
    b.gh = from.gh.data + row * from.gh.row + first;
    b.gh_time = from.gh.time;
    b.glast = from.glast + state;
    b.ga = to.ga ? to.ga + sequence : nullptr;
    b.sum = to.sum ? to.sum + state : nullptr;
    b.gb = to.gb + sequence;
    b.gh0 = to.gh0 + state;
    b.run();
  });
}

template <class Real>
Rows<Real> reals(Rows<Real> x) {
  return {x.data, 2 * x.row, 2 * x.time};
}

// Pairs counted as reals.
template <class Real>
ScanInputs<Real> reals(const ScanInputs<Real>& in) {
  return {{in.n.B, in.n.T, 2 * in.n.C}, reals(in.a), reals(in.b), in.h0, in.lengths, in.reset};
}

}  // namespace

template <class Real>
void linear_scan(const ScanInputs<Real>& in, const ScanOutputs<Real>& out, int threads) {
  forward<Real, RealField<Real>>(in, out, threads);
}

template <class Real>
void linear_scan_back(const ScanInputs<Real>& in, const ScanArriving<Real>& arriving, const ScanGradients<Real>& to,
                      int threads) {
  backward<Real, RealField<Real>>(in, arriving, to, threads);
}

template <class Real>
void complex_scan(const ScanInputs<Real>& in, const ScanOutputs<Real>& out, int threads) {
  forward<Real, ComplexField<Real>>(reals(in), out, threads);
}

template <class Real>
void complex_scan_back(const ScanInputs<Real>& in, const ScanArriving<Real>& arriving, const ScanGradients<Real>& to,
                       int threads) {
  backward<Real, ComplexField<Real>>(reals(in), {arriving.h, reals(arriving.gh), arriving.glast}, to, threads);
}

// m[t] = max(a[t] + m[t-1], b[t]); a reset starts from m = 0. NaN stays, as in Torch.
template <class Real>
void max_scan(const ScanInputs<Real>& in, const ScanOutputs<Real>& out, int threads) {
  const Dims n = in.n;
  Blocks(n, threads).run(n.B, [&](int64_t row, int64_t first, int64_t C) {
    Real* m = out.last + row * n.C + first;
    copy(in.h0 + row * n.C + first, m, C);
    for (int64_t t = 0; t < n.T; ++t) {
      Real* to = out.h + (row * n.T + t) * n.C + first;
      if (t >= in.lengths[row]) {
        clear(to, C);
        continue;
      }
      if (in.reset[row * n.T + t]) clear(m, C);
      const Real *a = in.a.data + row * in.a.row + t * in.a.time + first,
                 *b = in.b.data + row * in.b.row + t * in.b.time + first;
      each<Real, Real>(C, [=](auto v, int64_t c) {
        using V = decltype(v);
        const V left = load<V>(a + c) + load<V>(m + c), right = load<V>(b + c);
        const V larger = (left > right) | (left != left) ? left : right;
        store(m + c, larger);
        store(to + c, larger);
      });
    }
  });
}

// The gradient goes to the larger of the two, half to each where they are equal.
template <class Real>
void max_scan_back(const ScanInputs<Real>& in, const ScanArriving<Real>& from, const ScanGradients<Real>& to, int threads) {
  const Dims n = in.n;
  Blocks(n, threads).run(n.B, [&](int64_t row, int64_t first, int64_t C) {
    Real* g = to.gh0 + row * n.C + first;
    copy(from.glast + row * n.C + first, g, C);
    for (int64_t t = n.T - 1; t >= 0; --t) {
      const int64_t here = (row * n.T + t) * n.C + first;
      Real *ga = to.ga + here, *gb = to.gb + here;
      if (t >= in.lengths[row]) {
        clear(ga, C);
        clear(gb, C);
        continue;
      }
      const bool starts = in.reset[row * n.T + t];
      const Real *a = in.a.data + row * in.a.row + t * in.a.time + first,
                 *b = in.b.data + row * in.b.row + t * in.b.time + first;
      const Real* gm = from.gh.data + row * from.gh.row + t * from.gh.time + first;
      const Real* before = t > 0 ? from.h + here - n.C : in.h0 + row * n.C + first;
      for (int64_t c = 0; c < C; ++c) {
        const Real left = a[c] + (starts ? Real(0) : before[c]), all = gm[c] + g[c];
        const Real share = left == b[c] ? Real(0.5) * all : left > b[c] || left != left ? all : Real(0);
        ga[c] = share;
        gb[c] = left == b[c] ? share : left > b[c] || left != left ? Real(0) : all;
        g[c] = starts ? Real(0) : share;
      }
    }
  });
}

void reverse(int64_t B, int64_t T, int64_t bytes, const char* x, const int64_t* lengths, char* y, int threads) {
  if (B * T * bytes == 0) return;  // empty tensors have no address
  parallel(threads_for(B * T * bytes, WorthAThread::bytes, threads), B, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const char* from = x + row * T * bytes;
      char* to = y + row * T * bytes;
      const int64_t length = lengths[row];
      for (int64_t t = 0; t < length; ++t) std::memcpy(to + t * bytes, from + (length - 1 - t) * bytes, bytes);
      std::memcpy(to + length * bytes, from + length * bytes, (T - length) * bytes);
    }
  });
}

template <class Real>
int append(Program<Real>& program, const ScanOperation<Real>& o) {
  auto& steps = Steps<Real>::of(program);
  const int a = o.a, b = o.b, h = o.h;
  const int64_t C = steps.width(h);
  if (o.is_complex) {
    const int after = steps.slot(C);
    steps.each_row([=](Workspace<Real>& w, int64_t row) {
      Real* state = w.at(h, row);
      complex_scan<Real>({{1, 1, C / 2}, {w.at(a, row), 0, 0}, {w.at(b, row), 0, 0}, state, &one_step, &no_reset},
                         {w.at(after, row), state}, 1);
    });
  } else {  // whole vectors: a leaf fills cache lines, and what stands behind its numbers is never read
    steps.each_row([=](Workspace<Real>& w, int64_t row) {
      using V = Vec<Real>;
      const Real *decay = w.at(a, row), *more = w.at(b, row);
      Real* state = w.at(h, row);
      for (int64_t i = 0; i < C; i += lanes<Real>)
        store(state + i, fma(load<V>(decay + i), load<V>(state + i), load<V>(more + i)));
    });
  }
  return h;
}

// In float, a sum of ones would stay at 2^24.
template <class Real>
int append(Program<Real>& program, const MeanOperation<Real>& o) {
  constexpr int64_t each = sizeof(double) / sizeof(Real);
  auto& steps = Steps<Real>::of(program);
  const int64_t C = steps.width(o.x), W = steps.width(o.weight);
  const int y = steps.slot(C);
  steps.each_row([=](Workspace<Real>& w, int64_t row) {
    const Real *more = w.at(o.x, row), *weights = w.at(o.weight, row);
    Real *sums = w.at(o.sum, row), *totals = w.at(o.total, row), *to = w.at(y, row);
    for (int64_t i = 0; i < W; ++i) store(totals + i * each, fma(o.decay, load<double>(totals + i * each), double(weights[i])));
    for (int64_t i = 0; i < C; ++i) {
      const double s = fma(o.decay, load<double>(sums + i * each), double(more[i]));
      const double t = load<double>(totals + (W == 1 ? 0 : i) * each);
      store(sums + i * each, s);
      to[i] = t > 0 ? Real(s / t) : Real(0);
    }
  });
  return y;
}

#define ELMAN_INSTANCE(Real)                             \
  template LinearScan<Real> linear_scan<Real>;           \
  template LinearScanBack<Real> linear_scan_back<Real>;  \
  template LinearScan<Real> complex_scan<Real>;          \
  template LinearScanBack<Real> complex_scan_back<Real>; \
  template LinearScan<Real> max_scan<Real>;              \
  template LinearScanBack<Real> max_scan_back<Real>;
ELMAN_INSTANCE(float)
ELMAN_INSTANCE(double)
ELMAN_APPEND(ScanOperation)
ELMAN_APPEND(MeanOperation)

}  // namespace elman::ELMAN_NS
