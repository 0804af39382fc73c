// sigmoid, tanh, softplus, silu and log of n numbers. The last few go through the same lanes as the others, padded.
#include "kernels.h"
#include "math.h"
#include "parallel.h"
#include "product.h"

namespace elman::ELMAN_NS {
namespace {

constexpr int64_t chunk = 4096;  // elements per task: below it a second thread costs more than it saves

template <class T, class F>
void map(int64_t n, const T* x, T* y, int threads, const F& f) {
  parallel(threads, (n + chunk - 1) / chunk, [&](int64_t first, int64_t end) {
    const int64_t stop = std::min(end * chunk, n);
    for (int64_t i = first * chunk; i < stop; i += lanes<T>) store_some(y + i, f(load_some(x + i, stop - i)), stop - i);
  });
}

}  // namespace

template <class T>
void sigmoid(int64_t n, const T* x, T* y, int threads) {
  map(n, x, y, threads, [](Vec<T> v) { return logistic<T>(v); });
}

template <class T>
void tanh(int64_t n, const T* x, T* y, int threads) {
  map(n, x, y, threads, [](Vec<T> v) { return hyperbolic_tangent<T>(v); });
}

template <class T>
void softplus(int64_t n, const T* x, T* y, int threads) {
  map(n, x, y, threads, [](Vec<T> v) { return log_one_plus_exp<T>(v); });
}

template <class T>
void silu(int64_t n, const T* x, T* y, int threads) {
  map(n, x, y, threads, [](Vec<T> v) { return v * logistic<T>(v); });
}

template <class T>
void log(int64_t n, const T* x, T* y, int threads) {
  map(n, x, y, threads, [](Vec<T> v) { return logarithm<T>(v); });
}

#define ELMAN_INSTANCE(T)                                                                                            \
  template Elementwise<T> sigmoid<T>;                                                                                \
  template Elementwise<T> tanh<T>;                                                                                   \
  template Elementwise<T> softplus<T>;                                                                               \
  template Elementwise<T> silu<T>;                                                                                   \
  template Elementwise<T> log<T>;
ELMAN_INSTANCE(float)
ELMAN_INSTANCE(double)

}  // namespace elman::ELMAN_NS
