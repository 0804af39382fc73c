// Two gated loops over the same inputs, as a bidirectional layer has them. On two threads each loop has one of them: neither waits
// for the other, and each packs its own weights meanwhile. On more, one loop after the other has them all.
#include <exception>
#include <numeric>

#include "buffers.h"
#include "kernels.h"
#include "parallel.h"

namespace elman::ELMAN_NS {

template <class Real>
Gated<Real> gated;
template <class Real>
GatedBack<Real> gated_back;

namespace {

// run(which of them, threads) for both.
template <class Real, class F>
void both(const Pair<GatedInputs<Real>>& in, int threads, const F& run) {
  const GatedWeights<Real>& w = in.first.weights;
  const int64_t steps = std::accumulate(in.first.lengths, in.first.lengths + in.first.B, int64_t(0));
  if (threads != 2 || threads_for(steps * w.H * (w.D + w.R), WorthAThread::multiply_adds, threads) == 1) {
    run(0, threads);
    run(1, threads);
  } else {
    std::exception_ptr failed[2];  // out of memory: an exception must not leave a thread
    parallel(2, 2, [&](int64_t first, int64_t end) {
      for (int64_t i = first; i < end; ++i) try {
          run(int(i), 1);
        } catch (...) {
          failed[i] = std::current_exception();
        }
    });
    for (const std::exception_ptr& one : failed)
      if (one) std::rethrow_exception(one);
  }
}

template <class Struct>
const Struct& of(const Pair<Struct>& pair, int i) {
  return i == 0 ? pair.first : pair.second;
}

// to += more, (B, T, D), where there are steps.
template <class Real>
void add_steps(const GatedInputs<Real>& in, const Real* more, Real* to, int threads) {
  const int64_t row = in.T * in.weights.D;
  parallel(threads_for(in.B * row, WorthAThread::elements, threads), in.B, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i)
      for (int64_t n = i * row; n < i * row + in.lengths[i] * in.weights.D; ++n) to[n] += more[n];
  });
}

}  // namespace

template <class Real>
void gated_pair(const Pair<GatedInputs<Real>>& in, const Pair<GatedOutputs<Real>>& out, int threads) {
  both(in, threads, [&](int i, int count) { gated(of(in, i), of(out, i), count); });
}

template <class Real>
void gated_pair_back(const Pair<GatedInputs<Real>>& in, const Pair<GatedArriving<Real>>& arriving,
                     const Pair<GatedGradients<Real>>& gradients, int threads) {
  Pair<GatedGradients<Real>> to = gradients;
  Buffer<Real> more;
  if (to.first.gx) {
    more = allocate<Real>(in.first.B * in.first.T * in.first.weights.D);
    to.second.gx = more.get();
  }
  both(in, threads, [&](int i, int count) { gated_back(of(in, i), of(arriving, i), of(to, i), count); });
  if (more) add_steps(in.first, more.get(), to.first.gx, threads);
}

template GatedPair<float> gated_pair<float>;
template GatedPair<double> gated_pair<double>;
template GatedPairBack<float> gated_pair_back<float>;
template GatedPairBack<double> gated_pair_back<double>;

}  // namespace elman::ELMAN_NS
