// Normalisation of rows: y = (x - mean) / sqrt(variance + eps) * gain + bias, or without the mean (rms).
//
// A row is summed lane by lane and then over the lanes, whatever rows stand beside it. Both moments are saved for the backward pass.
#include "norm.h"

#include "kernels.h"
#include "parallel.h"

namespace elman::ELMAN_NS {
namespace {

template <class T>
ELMAN_INLINE void normalise(int64_t N, const T* x, const T* gain, const T* bias, T eps, bool centred, T* y, T* mean, T* scale) {
  constexpr int L = lanes<T>;
  const T m = centred ? sums_over_units<1, 1, T>(N, [=](int64_t i, int) { return load_some(x + i, N - i); })[0] / T(N) : T(0);
  const T square = sums_over_units<1, 1, T>(N, [=](int64_t i, int) {
    const Vec<T> v = load_some(x + i, N - i) - m;
    return Vec<T>(v * v);
  })[0] / T(N);
  const T r = T(1) / std::sqrt(square + eps);
  for (int64_t i = 0; i < N; i += L) {
    Vec<T> v = (load_some(x + i, N - i) - m) * r;
    if (gain) v = v * load_some(gain + i, N - i);
    if (bias) v = v + load_some(bias + i, N - i);
    store_some(y + i, v, N - i);
  }
  *mean = m;
  *scale = r;
}

}  // namespace

template <class T>
void norm(const NormInputs<T>& in, const NormOutputs<T>& out, int threads) {
  const int64_t M = in.M, N = in.N;
  prefer_huge_pages(out.y, M * N * sizeof(T));
  const int64_t chunk = std::max<int64_t>(4096 / std::max<int64_t>(N, 1), 1);
  parallel(threads, (M + chunk - 1) / chunk, [&](int64_t first, int64_t end) {
    for (int64_t m = first * chunk; m < std::min(end * chunk, M); ++m)
      normalise(N, in.x + m * N, in.gain, in.bias, T(in.eps), in.centred, out.y + m * N, out.mean + m, out.scale + m);
  });
}

// With v = (x - mean) * scale and gv = gain * gy: gx = scale * (gv - mean(gv) - v * mean(gv * v)), the first mean only if
// centred; ggain = sum of gy * v, gbias = sum of gy over the rows, in groups that do not depend on the threads.
template <class T>
void norm_back(const NormInputs<T>& in, const NormArriving<T>& arriving, const NormGradients<T>& to, int threads) {
  constexpr int64_t L = lanes<T>, groups = 16;
  const int64_t M = in.M, N = in.N;
  const T *gain = in.gain, *mean = arriving.mean, *scale = arriving.scale;
  const int64_t padded = (N + L - 1) / L * L;
  const auto sums = zeros<T>(groups * 2 * padded);
  prefer_huge_pages(to.gx, M * N * sizeof(T));
  parallel(threads, groups, [&](int64_t first, int64_t end) {
    for (int64_t group = first; group < end; ++group)
      for (int64_t m = M * group / groups; m < M * (group + 1) / groups; ++m) {
        const T *xm = in.x + m * N, *gm = arriving.gy + m * N;
        const auto v = [=](int64_t n) { return (load_some(xm + n, N - n) - mean[m]) * scale[m]; };
        const auto gv = [=](int64_t n) { return gain ? load_some(gm + n, N - n) * load_some(gain + n, N - n) : load_some(gm + n, N - n); };
        const auto [first, second] = sums_over_units<2, 1, T>(N, [=](int64_t n, int i) { return i == 0 ? gv(n) : Vec<T>(gv(n) * v(n)); });
        const T a = in.centred ? first / T(N) : T(0), b = second / T(N);
        T *gains = sums.get() + group * 2 * padded, *biases = gains + padded;
        for (int64_t n = 0; n < N; n += L) {
          const Vec<T> vn = v(n), g = load_some(gm + n, N - n);
          store_some(to.gx + m * N + n, Vec<T>((gv(n) - a - vn * b) * scale[m]), N - n);
          store(gains + n, Vec<T>(load<Vec<T>>(gains + n) + g * vn));
          store(biases + n, Vec<T>(load<Vec<T>>(biases + n) + g));
        }
      }
  });
  for (int64_t n = 0; n < N; ++n) {
    to.ggain[n] = to.gbias[n] = T(0);
    for (int64_t group = 0; group < groups; ++group) {
      to.ggain[n] += sums[group * 2 * padded + n];
      to.gbias[n] += sums[(group * 2 + 1) * padded + n];
    }
  }
}

template NormBack<float> norm_back<float>;
template NormBack<double> norm_back<double>;
template Norm<float> norm<float>;
template Norm<double> norm<double>;

}  // namespace elman::ELMAN_NS
