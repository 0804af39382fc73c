// The causal convolution of each channel with K taps, over a window that is carried on, forward and backward:
//
//   y[t] = bias + sum_k weight[k] x[t - K + 1 + k]      x before t = 0 is the window (B, K - 1, C), the newest last
//
// Beside it, in programs: the inputs of some steps ago (lags), which keep such a window too.
// Taps of an earlier episode are read from a row of zeros, never multiplied by zero: zero times infinity would be NaN.
#include <vector>

#include "channels.h"
#include "product.h"
#include "steps.h"

namespace elman::ELMAN_NS {
namespace {

// A block of channels of one row.
template <class Real>
struct Channels {
  const ConvolutionInputs<Real>& in;
  const int64_t row, first, C, K, length;
  const bool* reset;
  const Buffer<Real> zeros;
  std::vector<const Real*> taps;

  Channels(const ConvolutionInputs<Real>& in, int64_t row, int64_t first, int64_t C)
      : in(in),
        row(row),
        first(first),
        C(C),
        K(in.K),
        length(in.lengths[row]),
        reset(in.reset + row * in.n.T),
        zeros(allocate<Real>(C)),
        taps(K) {
    clear(zeros.get(), C);
  }

  int64_t at(int64_t t) const { return (row * in.n.T + t) * in.n.C + first; }
  int64_t window_at(int64_t k) const { return (row * (K - 1) + k) * in.n.C + first; }

  // The input at t >= 1 - K, whatever its episode.
  const Real* input(int64_t t) const {
    return t < 0 ? in.window + window_at(t + K - 1) : in.x.data + row * in.x.row + t * in.x.time + first;
  }

  // The first step of the episode that t belongs to; -K if it began before the window. `start` is that of t - 1.
  int64_t episode(int64_t t, int64_t start) const { return reset[t] ? t : start; }

  // taps[k] is x[t - K + 1 + k], or zeros where that is before `start`.
  void gather(int64_t t, int64_t start) {
    for (int64_t k = 0; k < K; ++k) taps[k] = t - K + 1 + k < start ? zeros.get() : input(t - K + 1 + k);
  }

  void forward(Real* y, Real* last) {
    int64_t start = -K;
    for (int64_t t = 0; t < length; ++t) {
      start = episode(t, start);
      gather(t, start);
      Real* to = y + at(t);
      each<Real, Real>(C, [&](auto v, int64_t c) {
        using V = decltype(v);
        V sum = load<V>(in.bias + first + c);
        for (int64_t k = 0; k < K; ++k) sum = fma(load<V>(in.weight + k * in.n.C + first + c), load<V>(taps[k] + c), sum);
        store(to + c, sum);
      });
    }
    for (int64_t t = length; t < in.n.T; ++t) clear(y + at(t), C);
    gather(length, start);  // but for the newest, which is not there
    for (int64_t k = 0; k + 1 < K; ++k) copy(taps[k], last + window_at(k), C);
  }

  // gx[t] = sum_k weight[k] gy[t + K - 1 - k], up to the end of the episode, and the gradient at the last window if it holds x[t]
  void inputs(Rows<Real> gy, const Real* glast, Real* gx, Real* gwindow) {
    int64_t end = length;  // of the episode that t belongs to
    for (int64_t t = length - 1; t > -K; --t) {
      const int64_t from = std::max<int64_t>(t + K - end, 0), to = std::min(t + K, K);  // 0 <= t + K - 1 - k < end
      const Real *w = in.weight + first, *g = gy.data + row * gy.row + (t + K - 1) * gy.time + first;
      const int64_t place = t - (length - K + 1);
      const Real* start = place >= 0 && end == length ? glast + window_at(place) : zeros.get();
      Real* out = t < 0 ? gwindow + window_at(t + K - 1) : gx + at(t);
      each<Real, Real>(C, [&](auto v, int64_t c) {
        using V = decltype(v);
        V sum = load<V>(start + c);
        for (int64_t k = from; k < to; ++k) sum = fma(load<V>(w + k * in.n.C + c), load<V>(g - k * gy.time + c), sum);
        store(out + c, sum);
      });
      if (t >= 0 && reset[t]) end = t;
    }
    for (int64_t t = length; t < in.n.T; ++t) clear(gx + at(t), C);
  }

  // gweight (K, C), gbias (C). Added up over a block of time, and blocks in double, so that a long row keeps its digits.
  void weights(Rows<Real> gy, double* gweight, double* gbias) {
    constexpr int64_t block = 32;
    const auto part = allocate<Real>((K + 1) * C);  // of the weights, then of the bias
    const auto sums = [=](int64_t k) { return k < K ? gweight + k * in.n.C : gbias; };
    for (int64_t k = 0; k <= K; ++k) clear(sums(k), C);
    for (int64_t begin = 0, start = -K; begin < length; begin += block) {
      clear(part.get(), (K + 1) * C);
      for (int64_t t = begin; t < std::min(begin + block, length); ++t) {
        start = episode(t, start);
        gather(t, start);
        const Real* g = gy.data + row * gy.row + t * gy.time + first;
        each<Real, Real>(C, [&](auto v, int64_t c) {
          using V = decltype(v);
          const V d = load<V>(g + c);
          Real* to = part.get() + c;
          for (int64_t k = 0; k < K; ++k, to += C) store(to, fma(d, load<V>(taps[k] + c), load<V>(to)));
          store(to, V(load<V>(to) + d));
        });
      }
      for (int64_t k = 0; k <= K; ++k)
        for (int64_t c = 0; c < C; ++c) sums(k)[c] += double(part[k * C + c]);
    }
  }
};

}  // namespace

template <class Real>
void convolution(const ConvolutionInputs<Real>& in, const ConvolutionOutputs<Real>& out, int threads) {
  Blocks(in.n, threads).run(in.n.B, [&](int64_t row, int64_t first, int64_t C) {
    Channels<Real>(in, row, first, C).forward(out.y, out.last);
  });
}

template <class Real>
void convolution_back(const ConvolutionInputs<Real>& in, const ConvolutionArriving<Real>& arriving,
                      const ConvolutionGradients<Real>& to, int threads) {
  Blocks(in.n, threads, widest).run(in.n.B, [&](int64_t row, int64_t first, int64_t C) {
    Channels<Real> block(in, row, first, C);
    block.inputs(arriving.gy, arriving.glast, to.gx, to.gwindow);
    block.weights(arriving.gy, to.gweight + row * in.K * in.n.C + first, to.gbias + row * in.n.C + first);
  });
}

template <class Real>
int append(Program<Real>& program, const ConvolutionOperation<Real>& o) {
  auto& steps = Steps<Real>::of(program);
  const int64_t D = steps.width(o.x), K = o.K;
  const int y = steps.slot(D), taps = steps.constant(D * K, o.w), bias = steps.constant(D, o.bias);
  steps.each_row([=, x = o.x, window = o.window](Workspace<Real>& w, int64_t row) {
    Real* state = w.at(window, row);
    convolution<Real>({{1, 1, D}, K, {w.at(x, row), 0, 0}, w.at(taps, 0), w.at(bias, 0), state, &one_step, &no_reset},
                      {w.at(y, row), state}, 1);
  });
  return y;
}

template <class Real>
int append(Program<Real>& program, const LagsOperation<Real>& o) {
  auto& steps = Steps<Real>::of(program);
  const int64_t D = steps.width(o.x), held = steps.width(o.past);
  const int x = o.x, past = o.past, y = steps.slot(o.count * D);
  steps.each_row([=, ago = std::vector<int64_t>(o.delays, o.delays + o.count)](Workspace<Real>& w, int64_t row) {
    const Real* given = w.at(x, row);
    Real *to = w.at(y, row), *state = w.at(past, row);
    for (size_t i = 0; i < ago.size(); ++i) copy_numbers(ago[i] ? state + held - ago[i] * D : given, to + i * D, D);
    if (held == 0) return;
    std::memmove(state, state + D, (held - D) * sizeof(Real));
    copy_numbers(given, state + held - D, D);
  });
  return y;
}

#define ELMAN_INSTANCE(Real)                    \
  template Convolution<Real> convolution<Real>; \
  template ConvolutionBack<Real> convolution_back<Real>;
ELMAN_INSTANCE(float)
ELMAN_INSTANCE(double)
ELMAN_APPEND(ConvolutionOperation)
ELMAN_APPEND(LagsOperation)

}  // namespace elman::ELMAN_NS
