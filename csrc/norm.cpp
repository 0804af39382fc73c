// Normalisation of rows: y = (x - mean) / sqrt(variance + eps) * gain + bias, or without the mean (rms).
//
// A row is summed lane by lane and the lanes in order, whatever rows stand beside it. Both moments are saved for the way back.
#include "norm.h"

#include "kernels.h"
#include "parallel.h"

namespace elman::ELMAN_NS {
namespace {

template <class T>
ELMAN_INLINE void normalise(int64_t N, const T* x, const T* gain, const T* bias, T eps, bool centred, T* y, T* mean, T* scale) {
  constexpr int L = lanes<T>;
  const T m = centred ? sum_units<T>(N, [=](int64_t i) { return load_some(x + i, N - i); }) / T(N) : T(0);
  const T square = sum_units<T>(N, [=](int64_t i) {
    const Vec<T> v = load_some(x + i, N - i) - m;
    return v * v;
  }) / T(N);
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
  const int64_t chunk = std::max<int64_t>(4096 / std::max<int64_t>(N, 1), 1);
  parallel(threads, (M + chunk - 1) / chunk, [&](int64_t first, int64_t end) {
    for (int64_t m = first * chunk; m < std::min(end * chunk, M); ++m)
      normalise(N, x + m * N, gain, bias, eps, centred, y + m * N, mean + m, scale + m);
  });
}

template Norm<float> norm<float>;
template Norm<double> norm<double>;

}  // namespace elman::ELMAN_NS
