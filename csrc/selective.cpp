// The selective scan of Mamba, forward and backward, without its (B, T, D, N) states in memory:
//
//   h[t,d,n] = exp(delta[t,d] A[d,n]) h[t-1,d,n] + delta[t,d] x[t,d] B[t,n]        y[t,d] = sum_n C[t,n] h[t,d,n]
//
// A lane is a channel d, and sums over n run upwards, so a row's bits depend on that row alone. A task is a group of
// channels of one row: its states, [block of lanes][n][lane], stay in the first-level cache while time goes on.
// The backward pass starts from states saved every so many steps, and recomputes those in between into a small buffer.
// A reset is a branch, never a coefficient of zero: zero times infinity would be NaN.
#include "channels.h"
#include "math.h"
#include "product.h"
#include "steps.h"

namespace elman::ELMAN_NS {
namespace {

constexpr int64_t group = 128;  // channels of a task; fixed, because sums over channels are taken group by group

int64_t groups(int64_t D) { return (D + group - 1) / group; }

// A group of channels of one row. D here counts the channels of the group.
template <class Real>
class Task {
 protected:
  static constexpr int L = lanes<Real>;

  const SelectiveInputs<Real>& in;
  const int64_t row, first, D, N, blocks, length;
  const bool* reset;
  Buffer<Real> A;  // [block][n][lane], as all states

  Task(const SelectiveInputs<Real>& inputs, int64_t row, int64_t number)
      : in(inputs),
        row(row),
        first(number * group),
        D(std::min(group, in.n.C - first)),
        N(in.N),
        blocks((D + L - 1) / L),
        length(in.lengths[row]),
        reset(in.reset + row * in.n.T),
        A(packed(in.A + first * N)) {}

  // x (D, N), channel by channel
  Buffer<Real> packed(const Real* x) const {
    auto to = allocate<Real>(blocks * N * L);
    for (int64_t j = 0; j < blocks; ++j) pack_lanes(x + j * L * N, N, wide(j), N, to.get() + j * N * L, L);
    return to;
  }

  template <class U>
  void unpack(const U* from, U* x) const {
    for (int64_t d = 0; d < D; ++d)
      for (int64_t n = 0; n < N; ++n) x[d * N + n] = from[(d / L * N + n) * L + d % L];
  }

  int64_t wide(int64_t j) const { return std::min<int64_t>(L, D - j * L); }  // channels in block j
  int64_t state() const { return (row * in.n.C + first) * N; }               // of the group, in a (B, D, N) array
  int64_t at(int64_t t) const { return (row * in.n.T + t) * in.n.C + first; }

  // The k-th saved state of the group, with the lanes past its end; k = 1 is the first.
  int64_t checkpoint(int64_t k) const {
    const int64_t all = (in.n.C + 15) / 16 * 16 * N, step = (all + in.every - 1) / in.every;
    return row * in.n.T * step + (k - 1) * all + first * N;
  }

  ELMAN_INLINE Vec<Real> input(const Rows<Real>& x, int64_t t, int64_t j) const {
    return load_some(x.data + row * x.row + t * x.time + first + j * L, wide(j));
  }
  const Real* selection(const Rows<Real>& x, int64_t t) const { return x.data + row * x.row + t * x.time; }
};

template <class Real>
class Forward : Task<Real> {
  using Task<Real>::L, Task<Real>::in, Task<Real>::row, Task<Real>::N, Task<Real>::blocks, Task<Real>::length,
      Task<Real>::reset, Task<Real>::A;

  Buffer<Real> h;

 public:
  Forward(const SelectiveInputs<Real>& inputs, int64_t row, int64_t number)
      : Task<Real>(inputs, row, number), h(this->packed(in.h0 + this->state())) {}

  void run(Real* y, Real* last, Real* saved) {
    for (int64_t t = 0; t < length; ++t) {
      if (saved && t > 0 && t % in.every == 0) copy(h.get(), saved + this->checkpoint(t / in.every), blocks * N * L);
      for (int64_t j = 0; j < blocks; ++j)
        store_some(y + this->at(t) + j * L, reset[t] ? step<true>(t, j) : step<false>(t, j), this->wide(j));
    }
    for (int64_t t = length; t < in.n.T; ++t) clear(y + this->at(t), this->D);
    this->unpack(h.get(), last + this->state());
  }

 private:
  template <bool starts>
  ELMAN_INLINE Vec<Real> step(int64_t t, int64_t j) {
    const Vec<Real> delta = this->input(in.delta, t, j), drive = delta * this->input(in.x, t, j);
    const Real *B = this->selection(in.B, t), *C = this->selection(in.C, t);
    const Real* a = A.get() + j * N * L;
    Real* state = h.get() + j * N * L;
    Vec<Real> y{};
    for (int64_t n = 0; n < N; ++n, a += L, state += L) {
      Vec<Real> now = drive * B[n];
      if (!starts) now = fma(exponential<Real>(delta * load<Vec<Real>>(a)), load<Vec<Real>>(state), now);
      store(state, now);
      y = fma(now, splat(C[n]), y);
    }
    return y;
  }
};

// With g[t,d,n] the gradient at h[t,d,n], and e = exp(delta A):
//
//   g[t] = gy[t] C[t] + e[t+1] g[t+1]           q = g e h[t-1]
//   gx = delta sum_n g B      gdelta = x sum_n g B + sum_n q A      gA = sum_t q delta
//   gB = sum_d g delta x      gC = sum_d gy h
template <class Real>
class Backward : Task<Real> {
  using Task<Real>::L, Task<Real>::in, Task<Real>::row, Task<Real>::N, Task<Real>::blocks, Task<Real>::length,
      Task<Real>::reset, Task<Real>::A;

  const SelectiveArriving<Real>& from;
  const SelectiveGradients<Real>& to;
  const int64_t size = N * L;  // of a state of one block of lanes
  const Buffer<Real> h0, g;    // g: the gradient at the state before the step at hand
  const Buffer<Real> h = allocate<Real>((in.every + 1) * size), e = allocate<Real>(in.every * size);  // of one block
  const Buffer<Real> gB = allocate<Real>(in.every * size), gC = allocate<Real>(in.every * size);      // sums lane by lane
  const Buffer<Real> part = allocate<Real>(size);             // of gA, over one block of time
  const Buffer<double> gA = allocate<double>(blocks * size);  // over all: a long row would lose digits in a float

 public:
  Backward(const SelectiveInputs<Real>& inputs, const SelectiveArriving<Real>& from, const SelectiveGradients<Real>& to,
           int64_t row, int64_t number)
      : Task<Real>(inputs, row, number),
        from(from),
        to(to),
        h0(this->packed(in.h0 + this->state())),
        g(this->packed(from.glast + this->state())) {
    clear(gA.get(), blocks * size);
  }

  // sums: [time][2][n], this group's part of gB and gC, `stride` apart
  void run(Real* sums, int64_t stride) {
    for (int64_t end = length, begin; end > 0; end = begin) {
      begin = (end - 1) / in.every * in.every;
      clear(gB.get(), (end - begin) * size);
      clear(gC.get(), (end - begin) * size);
      for (int64_t j = blocks - 1; j >= 0; --j) {
        recompute(begin, end, j);
        retrace(begin, end, j);
        if (j == blocks - 1) drop_lanes((end - begin) * N, this->wide(j));
      }
      for (int64_t i = 0; i < (end - begin) * N; ++i) {
        Real* sum = sums + (begin + i / N) * stride + i % N;
        sum[0] = sum_lanes_in_order<Real>(gB.get() + i * L);
        sum[N] = sum_lanes_in_order<Real>(gC.get() + i * L);
      }
    }
    for (int64_t t = length; t < in.n.T; ++t) {
      clear(to.gx + this->at(t), this->D);
      clear(to.gdelta + this->at(t), this->D);
    }
    this->unpack(gA.get(), to.gA + this->state());
    this->unpack(g.get(), to.gh0 + this->state());
  }

 private:
  // h[i], e[i] for the steps begin + i; h[i] is the state before the step.
  ELMAN_INLINE void recompute(int64_t begin, int64_t end, int64_t j) {
    copy(begin == 0 ? h0.get() + j * size : from.saved + this->checkpoint(begin / in.every) + j * size, h.get(), size);
    for (int64_t t = begin; t < end; ++t) {
      const Vec<Real> delta = this->input(in.delta, t, j), drive = delta * this->input(in.x, t, j);
      const Real *a = A.get() + j * size, *B = this->selection(in.B, t);
      Real *decays = e.get() + (t - begin) * size, *state = h.get() + (t - begin) * size;
      for (int64_t n = 0; n < N; ++n, a += L, decays += L, state += L) {
        Vec<Real> now = drive * B[n];
        if (!reset[t]) {
          const Vec<Real> decay = exponential<Real>(delta * load<Vec<Real>>(a));
          store(decays, decay);
          now = fma(decay, load<Vec<Real>>(state), now);
        }
        store(state + size, now);
      }
    }
  }

  ELMAN_INLINE void retrace(int64_t begin, int64_t end, int64_t j) {
    clear(part.get(), size);
    for (int64_t t = end - 1; t >= begin; --t) reset[t] ? back<true>(t, t - begin, j) : back<false>(t, t - begin, j);
    for (int64_t i = 0; i < size; ++i) gA[j * size + i] += double(part[i]);
  }

  template <bool starts>
  ELMAN_INLINE void back(int64_t t, int64_t i, int64_t j) {
    const Vec<Real> delta = this->input(in.delta, t, j), x = this->input(in.x, t, j), gyt = this->input(from.gy, t, j);
    const Vec<Real> drive = delta * x;
    const Real *B = this->selection(in.B, t), *C = this->selection(in.C, t);
    const Real *a = A.get() + j * size, *before = h.get() + i * size, *decays = e.get() + i * size;
    Real *gBt = gB.get() + i * size, *gCt = gC.get() + i * size, *gt = g.get() + j * size, *gAt = part.get();
    Vec<Real> driven{}, decayed{};
    for (int64_t n = 0, l = 0; n < N; ++n, l += L) {
      const Vec<Real> d = fma(gyt, splat(C[n]), load<Vec<Real>>(gt + l));
      store(gCt + l, fma(gyt, load<Vec<Real>>(before + size + l), load<Vec<Real>>(gCt + l)));
      store(gBt + l, fma(d, drive, load<Vec<Real>>(gBt + l)));
      driven = fma(d, splat(B[n]), driven);
      if (starts) {
        store(gt + l, Vec<Real>{});
        continue;
      }
      const Vec<Real> onward = d * load<Vec<Real>>(decays + l), q = onward * load<Vec<Real>>(before + l);
      store(gt + l, onward);
      decayed = fma(q, load<Vec<Real>>(a + l), decayed);
      store(gAt + l, fma(q, delta, load<Vec<Real>>(gAt + l)));
    }
    store_some(to.gx + this->at(t) + j * L, Vec<Real>(delta * driven), this->wide(j));
    store_some(to.gdelta + this->at(t) + j * L, fma(x, driven, decayed), this->wide(j));
  }

  // What lies past the last channel has no part in a sum over channels: an infinite B or C makes it NaN.
  void drop_lanes(int64_t vectors, int64_t from) {
    for (int64_t i = 0; i < vectors; ++i)
      for (int64_t l = from; l < L; ++l) gB[i * L + l] = gC[i * L + l] = Real(0);
  }
};

template <class Real>
int threads_for(const SelectiveInputs<Real>& in, int threads) {
  return ELMAN_NS::threads_for(in.n.B * in.n.T * in.n.C * in.N, WorthAThread::elements, threads);
}

}  // namespace

template <class Real>
void selective_scan(const SelectiveInputs<Real>& in, const SelectiveOutputs<Real>& out, int threads) {
  const int64_t G = groups(in.n.C);
  parallel(threads_for(in, threads), in.n.B * G, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) Forward<Real>(in, i / G, i % G).run(out.y, out.last, out.saved);
  });
}

template <class Real>
void selective_scan_back(const SelectiveInputs<Real>& in, const SelectiveArriving<Real>& arriving,
                         const SelectiveGradients<Real>& to, int threads) {
  const int64_t G = groups(in.n.C), N = in.N, steps = in.n.T;
  threads = threads_for(in, threads);
  const auto sums = allocate<Real>(in.n.B * steps * G * 2 * N);
  parallel(threads, in.n.B * G, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      Backward<Real>(in, arriving, to, i / G, i % G).run(sums.get() + (i / G * steps * G + i % G) * 2 * N, G * 2 * N);
  });
  parallel(threads, in.n.B * steps, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Real *gB = to.gB + i * N, *gC = to.gC + i * N;
      clear(gB, N);
      clear(gC, N);
      if (i % steps >= in.lengths[i / steps]) continue;
      const Real* part = sums.get() + i * G * 2 * N;
      for (int64_t k = 0; k < G; ++k, part += 2 * N)
        for (int64_t n = 0; n < N; ++n) {
          gB[n] += part[n];
          gC[n] += part[N + n];
        }
    }
  });
}

template <class Real>
int append(Program<Real>& program, const SelectiveOperation<Real>& o) {
  auto& steps = Steps<Real>::of(program);
  const int64_t D = steps.width(o.x), N = o.N;
  const int y = steps.slot(D), A = steps.constant(D * N, o.A);
  steps.each_row([=, x = o.x, delta = o.delta, B = o.B, C = o.C, h = o.h](Workspace<Real>& w, int64_t row) {
    const auto rows = [&](int slot) { return Rows<Real>{w.at(slot, row), 0, 0}; };
    Real* state = w.at(h, row);
    selective_scan<Real>({{1, 1, D}, N, 1, rows(x), rows(delta), w.at(A, 0), rows(B), rows(C), state, &one_step, &no_reset},
                         {w.at(y, row), state, nullptr}, 1);
  });
  steps.costs(16 * D * N);  // an exponential for each
  return y;
}

#define ELMAN_INSTANCE(Real)                         \
  template SelectiveScan<Real> selective_scan<Real>; \
  template SelectiveScanBack<Real> selective_scan_back<Real>;
ELMAN_INSTANCE(float)
ELMAN_INSTANCE(double)
ELMAN_APPEND(SelectiveOperation)

}  // namespace elman::ELMAN_NS
