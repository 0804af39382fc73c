// Normalisation of rows: y = (x - mean) / sqrt(variance + eps) * gain + bias, or without the mean (rms).
//
// A row is summed lane by lane and then over the lanes, whatever rows stand beside it. Both moments are saved for the way back.
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
void norm(int64_t M, int64_t N, const T* x, const T* gain, const T* bias, T eps, bool centred, T* y, T* mean, T* scale,
          int threads) {
  prefer_huge_pages(y, M * N * sizeof(T));
  const int64_t chunk = std::max<int64_t>(4096 / std::max<int64_t>(N, 1), 1);
  parallel(threads, (M + chunk - 1) / chunk, [&](int64_t first, int64_t end) {
    for (int64_t m = first * chunk; m < std::min(end * chunk, M); ++m)
      normalise(N, x + m * N, gain, bias, eps, centred, y + m * N, mean + m, scale + m);
  });
}

// With v = (x - mean) * scale and gv = gain * gy: gx = scale * (gv - mean(gv) - v * mean(gv * v)), the first mean only if
// centred; ggain = sum of gy * v, gbias = sum of gy over the rows, in groups that do not depend on the threads.
template <class T>
void norm_back(int64_t M, int64_t N, const T* x, const T* gain, const T* mean, const T* scale, const T* gy, bool centred,
               T* gx, T* ggain, T* gbias, int threads) {
  constexpr int64_t L = lanes<T>, groups = 16;
  const int64_t padded = (N + L - 1) / L * L;
  const auto sums = zeros<T>(groups * 2 * padded);
  prefer_huge_pages(gx, M * N * sizeof(T));
  parallel(threads, groups, [&](int64_t first, int64_t end) {
    for (int64_t group = first; group < end; ++group)
      for (int64_t m = M * group / groups; m < M * (group + 1) / groups; ++m) {
        const T *xm = x + m * N, *gm = gy + m * N;
        const auto v = [=](int64_t n) { return (load_some(xm + n, N - n) - mean[m]) * scale[m]; };
        const auto gv = [=](int64_t n) { return gain ? load_some(gm + n, N - n) * load_some(gain + n, N - n) : load_some(gm + n, N - n); };
        const auto [first, second] = sums_over_units<2, 1, T>(N, [=](int64_t n, int i) { return i == 0 ? gv(n) : Vec<T>(gv(n) * v(n)); });
        const T a = centred ? first / T(N) : T(0), b = second / T(N);
        T *to = sums.get() + group * 2 * padded, *too = to + padded;
        for (int64_t n = 0; n < N; n += L) {
          const Vec<T> vn = v(n), g = load_some(gm + n, N - n);
          store_some(gx + m * N + n, Vec<T>((gv(n) - a - vn * b) * scale[m]), N - n);
          store(to + n, Vec<T>(load<Vec<T>>(to + n) + g * vn));
          store(too + n, Vec<T>(load<Vec<T>>(too + n) + g));
        }
      }
  });
  for (int64_t n = 0; n < N; ++n) {
    ggain[n] = gbias[n] = T(0);
    for (int64_t group = 0; group < groups; ++group) {
      ggain[n] += sums[group * 2 * padded + n];
      gbias[n] += sums[(group * 2 + 1) * padded + n];
    }
  }
}

template NormBack<float> norm_back<float>;
template NormBack<double> norm_back<double>;
template Norm<float> norm<float>;
template Norm<double> norm<double>;

}  // namespace elman::ELMAN_NS
