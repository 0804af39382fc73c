// What the scan of matrix states and its backward pass share: which correction a step has, and where the numbers of a head lie.
#pragma once

#include <algorithm>

#include "channels.h"
#include "kernels.h"
#include "product.h"

namespace elman::ELMAN_NS {

// What a step adds to diag(a) S' + k v^T: nothing; with d = b (v - m) in place of v, m = (a * k)^T S', the delta rule; or
// beta m^T, m = alpha^T S'.
enum class Correction { none, delta, general };

// a of a step: 1, one number for all keys, or one for each.
enum class Decay { none, one, each_key };

// f(std::integral_constant<Correction, ...>, std::integral_constant<Decay, ...>) of what these inputs have.
template <class Real, class F>
void with_rule(const MatrixInputs<Real>& in, const F& f) {
  const auto with = [&](auto correction) {
    if (!in.a.data) f(correction, std::integral_constant<Decay, Decay::none>{});
    else if (in.a.width == 1) f(correction, std::integral_constant<Decay, Decay::one>{});
    else f(correction, std::integral_constant<Decay, Decay::each_key>{});
  };
  if (in.alpha.data) with(std::integral_constant<Correction, Correction::general>{});
  else if (in.b.data) with(std::integral_constant<Correction, Correction::delta>{});
  else with(std::integral_constant<Correction, Correction::none>{});
}

// The numbers of one head of one row, step by step; null where there are none.
template <class Real>
class HeadSteps {
 public:
  HeadSteps(const Heads<Real>& x, int64_t row, int64_t head, int64_t H)
      : data_(x.data ? x.data + row * x.row + head / (H / x.count) * x.width : nullptr), time_(x.time) {}

  const Real* at(int64_t t) const { return data_ ? data_ + t * time_ : nullptr; }

 private:
  const Real* data_;
  int64_t time_;
};

template <class Real>
int threads_for(const MatrixInputs<Real>& in, int threads) {
  return ELMAN_NS::threads_for(in.B * in.T * in.H * in.K * in.V, WorthAThread::elements, threads);
}

// Where the k-th saved state of a head begins; k = 1 is the first.
template <class Real>
int64_t checkpoint(const MatrixInputs<Real>& in, int64_t row, int64_t head, int64_t k) {
  const int64_t all = in.H * in.K * in.V, step = (all + in.every - 1) / in.every;
  return row * in.T * step + (k - 1) * all + head * in.K * in.V;
}

template <class Real>
constexpr int64_t padded(int64_t K) {
  return (K + lanes<Real> - 1) / lanes<Real> * lanes<Real>;
}

// Columns of a state, [key][column] in whole rows of V, as [column][key], zero past the last key.
template <class Real>
void pack_keys(const MatrixInputs<Real>& in, const Real* S, int64_t columns, Real* to) {
  constexpr int64_t L = lanes<Real>;
  for (int64_t n = 0; n < in.K; n += L)
    pack_lanes(S + n * in.V, in.V, std::min(L, in.K - n), columns, to + n, padded<Real>(in.K));
}

}  // namespace elman::ELMAN_NS
