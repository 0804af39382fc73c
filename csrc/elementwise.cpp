// sigmoid, tanh, softplus, silu, log, exp, sin and cos of n numbers. The last few go through the same lanes as the others, padded.
#include "angles.h"
#include "kernels.h"
#include "math.h"
#include "parallel.h"
#include "product.h"
#include "steps.h"

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

template <class Real>
void exp(int64_t n, const Real* x, Real* y, int threads) {
  map(n, x, y, threads, [](Vec<Real> v) { return exponential<Real>(v); });
}

template <class Real>
void sin(int64_t n, const Real* x, Real* y, int threads) {
  map(n, x, y, threads, [](Vec<Real> v) { return sine<Real>(v); });
}

template <class Real>
void cos(int64_t n, const Real* x, Real* y, int threads) {
  map(n, x, y, threads, [](Vec<Real> v) { return cosine<Real>(v); });
}

template <class Real>
int append(Program<Real>& program, const MapOperation<Real>& o) {
  using V = Vec<Real>;
  auto& steps = Steps<Real>::of(program);
  const int y = steps.slot(steps.width(o.x));
  const auto each = [&](const auto& f) { steps.each_vector(y, o.x, o.x, [f](V v, V) { return V(f(v)); }); };
  switch (o.function) {
    case Function::sigmoid: each([](V v) { return logistic<Real>(v); }); break;
    case Function::tanh: each([](V v) { return hyperbolic_tangent<Real>(v); }); break;
    case Function::softplus: each([](V v) { return log_one_plus_exp<Real>(v); }); break;
    case Function::silu: each([](V v) { return V(v * logistic<Real>(v)); }); break;
    case Function::log: each([](V v) { return logarithm<Real>(v); }); break;
    case Function::exp: each([](V v) { return exponential<Real>(v); }); break;
    case Function::relu: each([](V v) { return V(v < Real(0) ? V{} : v); }); break;  // NaN stays
    case Function::abs: each([](V v) { return V(-minus_absolute<Real>(v)); }); break;
    case Function::sqrt: each([](V v) { return square_root<Real>(v); }); break;
    case Function::sin: each([](V v) { return sine<Real>(v); }); break;
    case Function::cos: each([](V v) { return cosine<Real>(v); }); break;
  }
  return y;
}

template <class Real>
int append(Program<Real>& program, const CombineOperation<Real>& o) {
  using V = Vec<Real>;
  auto& steps = Steps<Real>::of(program);
  const int z = steps.slot(steps.width(o.x));
  const auto each = [&](const auto& f) { steps.each_vector(z, o.x, o.y, f); };
  switch (o.function) {
    case Combination::add: each([](V a, V b) { return V(a + b); }); break;
    case Combination::mul: each([](V a, V b) { return V(a * b); }); break;
    case Combination::div: each([](V a, V b) { return V(a / b); }); break;
    // A NaN on either side stays one, as in Torch.
    case Combination::maximum: each([](V a, V b) { return (a > b) | (a != a) ? a : b; }); break;
    case Combination::minimum: each([](V a, V b) { return (a < b) | (a != a) ? a : b; }); break;
  }
  return z;
}

template <class Real>
int append(Program<Real>& program, const ChooseOperation<Real>& o) {
  auto& steps = Steps<Real>::of(program);
  const int64_t n = steps.width(o.x);
  const int z = steps.slot(n);
  steps.each_row([=](Workspace<Real>& w, int64_t row) {
    const Real *c = w.at(o.condition, row), *a = w.at(o.x, row), *b = w.at(o.y, row);
    Real* to = w.at(z, row);
    for (int64_t i = 0; i < n; i += lanes<Real>) {
      using V = Vec<Real>;
      store(to + i, V(load<V>(c + i) > Real(0) ? load<V>(a + i) : load<V>(b + i)));
    }
  });
  return z;
}

#define ELMAN_INSTANCE(Real)                 \
  template Elementwise<Real> sigmoid<Real>;  \
  template Elementwise<Real> tanh<Real>;     \
  template Elementwise<Real> softplus<Real>; \
  template Elementwise<Real> silu<Real>;     \
  template Elementwise<Real> log<Real>;      \
  template Elementwise<Real> exp<Real>;      \
  template Elementwise<Real> sin<Real>;      \
  template Elementwise<Real> cos<Real>;
ELMAN_INSTANCE(float)
ELMAN_INSTANCE(double)
ELMAN_APPEND(MapOperation)
ELMAN_APPEND(CombineOperation)
ELMAN_APPEND(ChooseOperation)

}  // namespace elman::ELMAN_NS
