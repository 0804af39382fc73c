// The gated loop whose state before is gathered from other rows, forward: level by level, groups over the threads.
//
//   recursive (F = 0):   h = tanh(u + W [h_1; ...; h_P])
//   lstm:                i, g, o, f_1 ... f_F from u + W [h_1; ...; h_P];  c = i * g + sum of f_p * c_p, h = o * tanh(c)
//   child_sum (first):   i, g, o from u + W (h_1 + ... + h_K), f_k from u_f + W_f h_k;  c and h as above
//
// Rows of the first level gather nothing: for them there is no product at all.
#include "gathered.h"

namespace elman::ELMAN_NS {
namespace {

template <class Real>
class Loop {
  static constexpr int L = lanes<Real>;
  using Shape = GatherShape<Real>;
  using V = Vec<Real>;

 public:
  Loop(const GatheredInputs<Real>& inputs, const GatheredOutputs<Real>& outputs)
      : in_(inputs), out_(outputs), s_(inputs), saves_(gathered_saves(inputs)) {
    const int64_t K = s_.P * s_.H;
    if (in_.first) {
      W_ = s_.pack(in_.w, 0, 3, K);
      W_f_ = s_.pack(in_.w, 3, 1, K);
      edges_ = most_edges(in_);
    } else {
      W_ = s_.pack(in_.w, 0, s_.G, K);
    }
    const int64_t given = in_.level[0] * s_.H * sizeof(Real);
    if (given) std::memcpy(out_.h, in_.h0, given);
    if (given && s_.F) std::memcpy(out_.c, in_.c0, given);
  }

  void operator()(const std::vector<GatherRange>& levels) const {
    Work work;
    work.ldx = Shape::stride(s_.P * s_.H);
    work.lds = Shape::stride(s_.G * s_.wide);
    work.x = zeros<Real>(gather_rows * work.ldx);
    work.sums = zeros<Real>(gather_rows * work.lds);
    if (in_.first) {
      work.ldf = Shape::stride(s_.wide);
      work.own = zeros<Real>(edges_ * work.ldx);
      work.forget = zeros<Real>(edges_ * work.ldf);
    }
    for (size_t l = 0; l < levels.size(); ++l) {
      if (l == 0) each_rows(levels[l], gather_rows, [&](int64_t n, int64_t end) { leaves(n, end, work); });
      else if (in_.first) each_edges(levels[l], in_.first, gather_rows, [&](int64_t n, int64_t end) { sums(n, end, work); });
      else each_rows(levels[l], gather_rows, [&](int64_t n, int64_t end) { places(n, end, work); });
    }
  }

 private:
  struct Work {
    int64_t ldx, lds, ldf = 0;
    Buffer<Real> x, sums, own, forget;
  };

  const Real* given(int64_t n) const {
    const int64_t m = in_.source ? in_.source[n] : n - in_.level[0];
    return m < 0 ? nullptr : in_.u + m * s_.A * s_.H;
  }

  // The first `gates` sums of a row begin with u, or with b where u says nothing.
  void start(int64_t n, int64_t gates, Real* sums) const {
    const Real* u = given(n);
    for (int64_t g = 0; g < gates; ++g)
      std::memcpy(sums + g * s_.wide, (u && g < s_.A ? u : in_.b) + g * s_.H, s_.H * sizeof(Real));
  }

  void gather(int64_t from, Real* to) const {
    if (from < 0) std::memset(to, 0, s_.H * sizeof(Real));
    else std::memcpy(to, out_.h + from * s_.H, s_.H * sizeof(Real));
  }

  void leaves(int64_t first, int64_t end, Work& w) const {
    const int64_t gates = s_.F ? 3 : 1;
    for (int64_t n = first; n < end; ++n) {
      start(n, gates, w.sums.get());
      finish(n, w.sums.get(), [](int64_t, V c) { return c; });
    }
  }

  void places(int64_t first, int64_t end, Work& w) const {
    const int64_t rows = end - first;
    for (int64_t i = 0; i < rows; ++i) {
      start(first + i, s_.G, w.sums.get() + i * w.lds);
      for (int64_t p = 0; p < s_.P; ++p) gather(in_.before[(first + i) * s_.P + p], w.x.get() + i * w.ldx + p * s_.H);
    }
    run_panels<2, Real>(W_.get(), 0, Shape::whole_pairs(s_.G * s_.wide) / Shape::pair, rows, w.x.get(), w.ldx, s_.P * s_.H,
                        nullptr, w.sums.get(), w.lds);
    for (int64_t i = 0; i < rows; ++i) {
      const Real* sums = w.sums.get() + i * w.lds;
      const int64_t *before = in_.before + (first + i) * s_.P, H = s_.H;
      Real* save = saved(first + i);
      finish(first + i, sums, [&](int64_t n, V c) {
        for (int64_t p = 0; p < s_.F; ++p) {
          const V f = logistic<Real>(load<V>(sums + (3 + p) * s_.wide + n));
          if (save) store_some(save + (3 + p) * H + n, f, H - n);
          if (before[p] >= 0) c = fma(f, load_some(out_.c + before[p] * H + n, H - n), c);
        }
        return c;
      });
    }
  }

  void sums(int64_t first, int64_t end, Work& w) const {
    const int64_t rows = end - first, H = s_.H, edge = in_.first[first], edges = in_.first[end] - edge;
    for (int64_t i = 0; i < rows; ++i) {
      Real *sums = w.sums.get() + i * w.lds, *x = w.x.get() + i * w.ldx;
      start(first + i, 4, sums);
      for (int64_t e = in_.first[first + i]; e < in_.first[first + i + 1]; ++e) {
        Real* own = w.own.get() + (e - edge) * w.ldx;
        gather(in_.before[e], own);
        if (e == in_.first[first + i]) std::memcpy(x, own, H * sizeof(Real));
        else
          for (int64_t n = 0; n < H; ++n) x[n] += own[n];
        std::memcpy(w.forget.get() + (e - edge) * w.ldf, sums + 3 * s_.wide, H * sizeof(Real));
      }
    }
    run_panels<2, Real>(W_.get(), 0, Shape::whole_pairs(3 * s_.wide) / Shape::pair, rows, w.x.get(), w.ldx, H, nullptr,
                        w.sums.get(), w.lds);
    run_panels<2, Real>(W_f_.get(), 0, Shape::whole_pairs(s_.wide) / Shape::pair, edges, w.own.get(), w.ldx, H, nullptr,
                        w.forget.get(), w.ldf);
    for (int64_t i = 0; i < rows; ++i) {
      finish(first + i, w.sums.get() + i * w.lds, [&](int64_t n, V c) {
        for (int64_t e = in_.first[first + i]; e < in_.first[first + i + 1]; ++e) {
          const V f = logistic<Real>(load<V>(w.forget.get() + (e - edge) * w.ldf + n));
          if (out_.forgets) store_some(out_.forgets + e * H + n, f, H - n);
          c = fma(f, load_some(out_.c + in_.before[e] * H + n, H - n), c);
        }
        return c;
      });
      if (Real* save = saved(first + i)) std::memcpy(save + 4 * H, w.x.get() + i * w.ldx, H * sizeof(Real));
    }
  }

  // The state of row n from its sums; keep(n, i * g) adds what is kept of the cells before.
  template <class Keep>
  ELMAN_INLINE void finish(int64_t row, const Real* sums, const Keep& keep) const {
    const int64_t H = s_.H, wide = s_.wide;
    Real *save = saved(row), *h = out_.h + row * H;
    for (int64_t n = 0; n < H; n += L) {
      if (!s_.F) {
        store_some(h + n, hyperbolic_tangent<Real>(load<V>(sums + n)), H - n);
        continue;
      }
      const V i = logistic<Real>(load<V>(sums + n)), g = hyperbolic_tangent<Real>(load<V>(sums + wide + n)),
              o = logistic<Real>(load<V>(sums + 2 * wide + n)), c = keep(n, V(i * g)), t = hyperbolic_tangent<Real>(c);
      store_some(out_.c + row * H + n, c, H - n);
      store_some(h + n, V(o * t), H - n);
      if (!save) continue;
      store_some(save + n, i, H - n);
      store_some(save + H + n, g, H - n);
      store_some(save + 2 * H + n, o, H - n);
      store_some(save + (3 + (in_.first ? 0 : s_.F)) * H + n, t, H - n);
    }
  }

  Real* saved(int64_t n) const { return out_.saved ? out_.saved + (n - in_.level[0]) * saves_ * s_.H : nullptr; }

  GatheredInputs<Real> in_;
  GatheredOutputs<Real> out_;
  Shape s_;
  int64_t saves_, edges_ = 0;
  Buffer<Real> W_, W_f_;
};

}  // namespace

template <class Real>
void gathered(const GatheredInputs<Real>& inputs, const GatheredOutputs<Real>& outputs, int threads) {
  const Loop<Real> loop(inputs, outputs);
  const GatherParts parts(inputs, threads);
  parallel(threads, parts.count(), [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) loop(parts.levels(i));
  });
}

template Gathered<float> gathered<float>;
template Gathered<double> gathered<double>;

}  // namespace elman::ELMAN_NS
