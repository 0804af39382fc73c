// Logarithms of the densities of Student's t and of the negative binomial, with their gradients, in double whatever the numbers
// are: their logarithms of gamma functions cancel in all but a few digits. n numbers, each by itself.
#include "gamma.h"
#include "kernels.h"
#include "math.h"
#include "parallel.h"
#include "product.h"

namespace elman::ELMAN_NS {
namespace {

using V = Vec<double>;
constexpr int L = lanes<double>;
constexpr double pi = 3.14159265358979323846;

// log(1 + w), w >= 0
ELMAN_INLINE V log_of_one_and(V w) { return w > 1.0 ? logarithm<double>(w + 1.0) : log_one_plus<double>(w > 1.0 ? V{} : w); }

// log G(z + by) - log G(z), z > 0 and by >= 0, and its derivative with respect to z. What is large cancels beforehand. A small z
// goes up by eight: G(v + 1) = v G(v).
struct Rising {
  V log, slope;
};
ELMAN_INLINE Rising rising(V z, V by) {
  const auto few = z < 8.0;
  const V low = few ? z : splat<double>(1.0);
  V quotients[2], slope{};
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {  // of all eight the product may be too large for a number
    V above = splat<double>(1.0), below = above;
#pragma GCC unroll 4
    for (int k = 4 * half; k < 4 * half + 4; ++k) {
      const V a = low + double(k), b = a + by;
      above = above * b, below = below * a;
      slope = slope + by / (a * b);
    }
    quotients[half] = above / below;
  }
  const V from = few ? z + 8.0 : z, to = from + by, ratio = log_of_one_and(by / from);
  const V log = (to - 0.5) * ratio + by * (logarithm<double>(from) - 1.0) + (stirling(to) - stirling(from));
  const V steps = logarithm<double>(quotients[0]) + logarithm<double>(quotients[1]);
  return {log - (few ? steps : V{}), ratio - (log_minus_digamma(to) - log_minus_digamma(from)) + (few ? slope : V{})};
}

ELMAN_INLINE V absolute(V x) { return -minus_absolute<double>(x); }

// f(at) for all numbers, a vector of doubles at a time.
template <class F>
void each(int64_t n, int threads, const F& f) {
  constexpr int64_t chunk = 1024, worth = 1 << 11;  // numbers that take about as long as it takes to wake a second thread
  parallel(threads_for(n, worth, threads), (n + chunk - 1) / chunk, [&](int64_t first, int64_t end) {
    for (int64_t i = first * chunk; i < std::min(end * chunk, n); i += L) f(i, std::min<int64_t>(n - i, L));
  });
}

template <class Real>
ELMAN_INLINE V doubles(const Real* p, int64_t count) {
  V v{};
  for (int64_t l = 0; l < std::min<int64_t>(count, L); ++l) v[l] = double(p[l]);
  return v;
}
template <class Real>
ELMAN_INLINE void leave(Real* p, V v, int64_t count) {
  for (int64_t l = 0; l < std::min<int64_t>(count, L); ++l) p[l] = Real(v[l]);
}

}  // namespace

template <class Real>
void student_t_log_prob(const StudentTInputs<Real>& in, const StudentTOutputs<Real>& out, int threads) {
  each(in.N, threads, [&](int64_t i, int64_t count) {
    const V df = doubles(in.df + i, count), scale = doubles(in.scale + i, count);
    const V t = (doubles(in.x + i, count) - doubles(in.mean + i, count)) / scale, size = absolute(t);
    const auto far = size > 1e100;  // where 1 + t^2 / df is t^2 / df to the last digit, and t^2 may be infinite
    const V near = far ? V{} : t, square = near * near;
    const V more = far ? 2.0 * logarithm<double>(size) - logarithm<double>(df) : log_of_one_and(square / df);
    const Rising r = rising(0.5 * df, splat<double>(0.5));
    leave(out.log_prob + i, r.log - 0.5 * logarithm<double>(df * pi) - logarithm<double>(scale) - 0.5 * (df + 1.0) * more,
          count);
    if (!out.gdf) return;
    const V over = far ? 1.0 / t : near / (df + square), share = far ? splat<double>(1.0) : near * over;  // t^2 / (df + t^2)
    leave(out.gmean + i, (df + 1.0) * over / scale, count);
    leave(out.gscale + i, ((df + 1.0) * share - 1.0) / scale, count);
    leave(out.gdf + i, 0.5 * (r.slope - more + ((df + 1.0) * share - 1.0) / df), count);
  });
}

template <class Real>
void negative_binomial_log_prob(const NegativeBinomialInputs<Real>& in, const NegativeBinomialOutputs<Real>& out, int threads) {
  each(in.N, threads, [&](int64_t i, int64_t count) {
    const V x = doubles(in.x + i, count), logits = doubles(in.logits + i, count), shape = doubles(in.shape + i, count);
    const auto low = logits < -37.0;  // where log(1 + e^l) is e^l to the last digit, and may be zero
    const V mean = log_one_plus_exp<double>(logits), more = log_of_one_and(mean / shape);
    const V log_mean = low ? logits : logarithm<double>(mean);
    const Rising ways = rising(shape, x);
    leave(out.log_prob + i,
          ways.log - rising(splat<double>(1.0), x).log - shape * more + x * (log_mean - logarithm<double>(shape) - more),
          count);
    if (!out.glogits) return;
    const V slope = logistic<double>(logits), both = shape + mean;
    leave(out.glogits + i, x * (low ? splat<double>(1.0) : slope / mean) - slope * (shape + x) / both, count);
    leave(out.gshape + i, ways.slope - more + (mean - x) / both, count);
  });
}

template StudentTLogProb<float> student_t_log_prob<float>;
template StudentTLogProb<double> student_t_log_prob<double>;
template NegativeBinomialLogProb<float> negative_binomial_log_prob<float>;
template NegativeBinomialLogProb<double> negative_binomial_log_prob<double>;

}  // namespace elman::ELMAN_NS
