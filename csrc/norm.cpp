// Normalisation of rows: y = (x - mean) / sqrt(variance + eps) * gain + bias, or without the mean (rms).
//
// A row is summed lane by lane and then over the lanes, whatever rows stand beside it. Both moments are saved for the backward pass.
#include "norm.h"

#include "kernels.h"
#include "parallel.h"
#include "steps.h"

namespace elman::ELMAN_NS {
namespace {

template <class Real>
ELMAN_INLINE void normalise(int64_t N, const Real* x, const Real* gain, const Real* bias, Real eps, bool centred, Real* y,
                            Real* mean, Real* scale) {
  constexpr int L = lanes<Real>;
  const Real m =
      centred ? sums_over_units<1, 1, Real>(N, [=](int64_t i, int) { return load_some(x + i, N - i); })[0] / Real(N) : Real(0);
  const Real square = sums_over_units<1, 1, Real>(N,
                                                  [=](int64_t i, int) {
                                                    const Vec<Real> v = load_some(x + i, N - i) - m;
                                                    return Vec<Real>(v * v);
                                                  })[0] /
                      Real(N);
  const Real r = Real(1) / std::sqrt(square + eps);
  for (int64_t i = 0; i < N; i += L) {
    Vec<Real> v = (load_some(x + i, N - i) - m) * r;
    if (gain) v = v * load_some(gain + i, N - i);
    if (bias) v = v + load_some(bias + i, N - i);
    store_some(y + i, v, N - i);
  }
  *mean = m;
  *scale = r;
}

}  // namespace

template <class Real>
void norm(const NormInputs<Real>& in, const NormOutputs<Real>& out, int threads) {
  const int64_t M = in.M, N = in.N;
  prefer_huge_pages(out.y, M * N * sizeof(Real));
  const int64_t chunk = std::max<int64_t>(4096 / std::max<int64_t>(N, 1), 1);
  parallel(threads, (M + chunk - 1) / chunk, [&](int64_t first, int64_t end) {
    for (int64_t m = first * chunk; m < std::min(end * chunk, M); ++m)
      normalise(N, in.x + m * N, in.gain, in.bias, Real(in.eps), in.centred, out.y + m * N, out.mean + m, out.scale + m);
  });
}

// With v = (x - mean) * scale and gv = gain * gy: gx = scale * (gv - mean(gv) - v * mean(gv * v)), the first mean only if
// centred; ggain = sum of gy * v, gbias = sum of gy over the rows, in groups that do not depend on the threads.
template <class Real>
void norm_back(const NormInputs<Real>& in, const NormArriving<Real>& arriving, const NormGradients<Real>& to, int threads) {
  constexpr int64_t L = lanes<Real>, groups = 16;
  const int64_t M = in.M, N = in.N;
  const Real *gain = in.gain, *mean = arriving.mean, *scale = arriving.scale;
  const int64_t padded = (N + L - 1) / L * L;
  const auto sums = zeros<Real>(groups * 2 * padded);
  prefer_huge_pages(to.gx, M * N * sizeof(Real));
  parallel(threads, groups, [&](int64_t first, int64_t end) {
    for (int64_t group = first; group < end; ++group)
      for (int64_t m = M * group / groups; m < M * (group + 1) / groups; ++m) {
        const Real *xm = in.x + m * N, *gm = arriving.gy + m * N;
        const auto v = [=](int64_t n) { return (load_some(xm + n, N - n) - mean[m]) * scale[m]; };
        const auto gv = [=](int64_t n) {
          return gain ? load_some(gm + n, N - n) * load_some(gain + n, N - n) : load_some(gm + n, N - n);
        };
        const auto [first, second] =
            sums_over_units<2, 1, Real>(N, [=](int64_t n, int i) { return i == 0 ? gv(n) : Vec<Real>(gv(n) * v(n)); });
        const Real a = in.centred ? first / Real(N) : Real(0), b = second / Real(N);
        Real *gains = sums.get() + group * 2 * padded, *biases = gains + padded;
        for (int64_t n = 0; n < N; n += L) {
          const Vec<Real> vn = v(n), g = load_some(gm + n, N - n);
          store_some(to.gx + m * N + n, Vec<Real>((gv(n) - a - vn * b) * scale[m]), N - n);
          store(gains + n, Vec<Real>(load<Vec<Real>>(gains + n) + g * vn));
          store(biases + n, Vec<Real>(load<Vec<Real>>(biases + n) + g));
        }
      }
  });
  for (int64_t n = 0; n < N; ++n) {
    to.ggain[n] = to.gbias[n] = Real(0);
    for (int64_t group = 0; group < groups; ++group) {
      to.ggain[n] += sums[group * 2 * padded + n];
      to.gbias[n] += sums[(group * 2 + 1) * padded + n];
    }
  }
}

template <class Real>
int append(Program<Real>& program, const NormOperation<Real>& o) {
  auto& steps = Steps<Real>::of(program);
  const int64_t M = o.heads, N = steps.width(o.x) / M;
  const int y = steps.slot(M * N), gain = o.gain ? steps.constant(N, o.gain) : -1,
            bias = o.bias ? steps.constant(N, o.bias) : -1;
  steps.each_row([=, x = o.x, eps = o.eps, centred = o.centred](Workspace<Real>& w, int64_t row) {
    const auto weights = [&](int slot) { return slot < 0 ? nullptr : w.at(slot, 0); };
    for (int64_t m = 0; m < M; ++m) {
      Real mean, scale;
      norm<Real>({1, N, w.at(x, row) + m * N, weights(gain), weights(bias), eps, centred},
                 {w.at(y, row) + m * N, &mean, &scale}, 1);
    }
  });
  return y;
}

template NormBack<float> norm_back<float>;
template NormBack<double> norm_back<double>;
template Norm<float> norm<float>;
template Norm<double> norm<double>;
ELMAN_APPEND(NormOperation)

}  // namespace elman::ELMAN_NS
