// sigmoid, tanh, softplus, silu and log of n numbers. The last few go through the same lanes as the others, padded.
#include "kernels.h"
#include "math.h"
#include "parallel.h"
#include "product.h"

namespace elman::ELMAN_NS {
namespace {

constexpr int64_t chunk = 4096;  // elements per task: below it a second thread costs more than it saves

template <class Real, class F>
void map(int64_t n, const Real* x, Real* y, int threads, const F& f) {
  parallel(threads, (n + chunk - 1) / chunk, [&](int64_t first, int64_t end) {
    const int64_t stop = std::min(end * chunk, n);
    for (int64_t i = first * chunk; i < stop; i += lanes<Real>) store_some(y + i, f(load_some(x + i, stop - i)), stop - i);
  });
}

}  // namespace

template <class Real>
void sigmoid(int64_t n, const Real* x, Real* y, int threads) {
  map(n, x, y, threads, [](Vec<Real> v) { return logistic<Real>(v); });
}

template <class Real>
void tanh(int64_t n, const Real* x, Real* y, int threads) {
  map(n, x, y, threads, [](Vec<Real> v) { return hyperbolic_tangent<Real>(v); });
}

template <class Real>
void softplus(int64_t n, const Real* x, Real* y, int threads) {
  map(n, x, y, threads, [](Vec<Real> v) { return log_one_plus_exp<Real>(v); });
}

template <class Real>
void silu(int64_t n, const Real* x, Real* y, int threads) {
  map(n, x, y, threads, [](Vec<Real> v) { return v * logistic<Real>(v); });
}

template <class Real>
void log(int64_t n, const Real* x, Real* y, int threads) {
  map(n, x, y, threads, [](Vec<Real> v) { return logarithm<Real>(v); });
}

#define ELMAN_INSTANCE(Real)                 \
  template Elementwise<Real> sigmoid<Real>;  \
  template Elementwise<Real> tanh<Real>;     \
  template Elementwise<Real> softplus<Real>; \
  template Elementwise<Real> silu<Real>;     \
  template Elementwise<Real> log<Real>;
ELMAN_INSTANCE(float)
ELMAN_INSTANCE(double)

}  // namespace elman::ELMAN_NS
