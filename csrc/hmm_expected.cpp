// What EM expects of whole sequences: the log-likelihood and its gradients. Few states go through hmm_few.h; more of them, and rows
// that it leaves, through the filter of hmm.cpp and its gradient. Rows are summed in groups, as many whatever the threads, and the
// groups in order.
#include <algorithm>
#include <vector>

#include "hmm_few.h"

namespace elman::ELMAN_NS {
template <class Real> HmmFilter<Real> hmm_filter;
template <class Real> HmmFilterBack<Real> hmm_filter_back;

namespace {

// Sums of some rows: gradients of start (K) and, unless they are not wanted, of transition (K, K).
template <class Real>
struct Sums {
  double total = 0;
  Buffer<Real> start, transition;
  Sums(int64_t K, bool counted) : start(zeros<Real>(K)), transition(counted ? zeros<Real>(K * K) : nullptr) {}
};

// Rows first to end by the filter and its gradient.
template <class Real>
void filtered(const ExpectedInputs<Real>& in, int64_t first, int64_t end, Real* gx, Sums<Real>& sums, int threads) {
  const int64_t B = end - first, T = in.T, K = in.K, groups = std::min(B, row_groups);
  const auto room = [](int64_t n) { return allocate<Real>(n); };
  const Buffer<Real> p = room(B * T * K), steps = room(4 * B * T), state = room(3 * B * K), gstart = room(groups * K),
                     ga = sums.transition ? room(groups * K * K) : nullptr;
  std::vector<char> lost(B);
  Real *log_c = steps.get(), *shift = log_c + B * T, *scale = shift + B * T, *glog = scale + B * T;
  Real *last = state.get() + B * K, *gstate = last + B * K;
  bool* was_lost = reinterpret_cast<bool*>(lost.data());
  for (int64_t b = 0; b < B; ++b) std::copy(in.start, in.start + K, state.get() + b * K);
  std::fill(glog, glog + B * T, Real(1));
  const HmmInputs<Real> chain{
      B, T, K, in.x + first * T * K, in.start, in.transition, state.get(), in.lengths + first, in.reset + first * T};
  hmm_filter<Real>(chain, {log_c, p.get(), shift, scale, last, was_lost}, threads);
  hmm_filter_back<Real>(chain, {p.get(), shift, scale, glog, nullptr, nullptr, was_lost},
                        {gx + first * T * K, gstart.get(), ga.get(), gstate}, threads);
  for (int64_t i = 0; i < B * T; ++i) sums.total += log_c[i];
  for (int64_t i = 0; i < groups * K; ++i) sums.start[i % K] += gstart[i];
  for (int64_t i = 0; i < B * K; ++i) sums.start[i % K] += gstate[i];
  for (int64_t i = 0; i < groups * K * K && ga; ++i) sums.transition[i % (K * K)] += ga[i];
}

// Rows of few states, by one thread or, if there is no other row, by two.
template <class Real>
class FewRows {
 public:
  FewRows(const ExpectedInputs<Real>& in, Width<Real> w, const Real* a, const Real* at, bool counted)
      : in_(in), w_(w), a_(a), at_(at), forward_(w, counted), backward_(w, counted), l_(allocate<Real>(in.T * in.K)) {}

  // Row b, added to `sums`; false if it is left to the filter.
  bool operator()(int64_t b, Real* gx, Sums<Real>& sums, int threads) {
    const int64_t K = in_.K, T = in_.T, length = in_.lengths[b];
    const Real* x = in_.x + b * T * K;
    gx += b * T * K;
    const FewRow<Real> row{w_, in_.start, a_, at_, in_.reset + b * T, length, l_.get(), gx};
    const auto relative_to_best = [&](int64_t t0, int64_t count, FewPass<Real>& pass) {
      Real* best = pass.z.m.get();
      likelihoods(x + t0 * K, count, w_, pass.z.l.get(), best, pass.z.p.get());
      narrow(pass.z.l.get(), count, w_, l_.get() + t0 * K);
      double total = 0;
      for (int64_t i = 0; i < count; ++i) total += best[i];
      return total;
    };
    if (!few_row(row, forward_, backward_, relative_to_best, threads)) return false;
    std::fill(gx + length * K, gx + T * K, Real(0));
    add(forward_, sums), add(backward_, sums);
    return true;
  }

 private:
  void add(const FewPass<Real>& pass, Sums<Real>& sums) const {
    const int64_t K = in_.K;
    sums.total += pass.total;
    for (int64_t k = 0; k < K; ++k)
      if (in_.start[k] > 0) sums.start[k] += pass.begins[k] / in_.start[k];
    for (int64_t i = 0; i < K * K && pass.counts; ++i)
      if (in_.transition[i] > 0) sums.transition[i] += pass.counts[i / K * w_.padded + i % K];  // what cannot be has no say
  }

  const ExpectedInputs<Real>& in_;
  const Width<Real> w_;
  const Real *a_, *at_;
  FewPass<Real> forward_, backward_;
  Buffer<Real> l_;
};

}  // namespace

template <class Real>
void hmm_expected(const ExpectedInputs<Real>& in, const ExpectedOutputs<Real>& out, int threads) {
  const int64_t K = in.K, groups = std::min(in.B, row_groups);
  const Width<Real> w(K);
  std::vector<Sums<Real>> sums;
  for (int64_t i = 0; i < std::max<int64_t>(groups, 1); ++i) sums.emplace_back(K, out.ga);
  if (!mixes(in.transition, K) || !in_registers(w, [](auto, auto) {})) filtered(in, 0, in.B, out.gx, sums[0], threads);
  else {
    const Buffer<Real> a = pack(in.transition, K, 1, w, Real(0)), at = pack(in.transition, 1, K, w, Real(0));
    threads = threads_for(in, threads);
    parallel(threads, groups, [&](int64_t first, int64_t end) {
      FewRows<Real> few(in, w, a.get(), at.get(), out.ga);
      for (int64_t i = first; i < end; ++i)
        for (int64_t b = in.B * i / groups; b < in.B * (i + 1) / groups; ++b)
          if (!few(b, out.gx, sums[i], in.B == 1 ? threads : 1)) filtered(in, b, b + 1, out.gx, sums[i], 1);
    });
  }
  for (int64_t i = 1; i < groups; ++i) {
    sums[0].total += sums[i].total;
    for (int64_t k = 0; k < K; ++k) sums[0].start[k] += sums[i].start[k];
    for (int64_t k = 0; k < K * K && out.ga; ++k) sums[0].transition[k] += sums[i].transition[k];
  }
  *out.total = Real(sums[0].total);
  std::copy(sums[0].start.get(), sums[0].start.get() + K, out.gstart);
  if (out.ga) std::copy(sums[0].transition.get(), sums[0].transition.get() + K * K, out.ga);
}

template HmmExpected<float> hmm_expected<float>;
template HmmExpected<double> hmm_expected<double>;

}  // namespace elman::ELMAN_NS
