// The best path through scores (A. J. Viterbi, 1967); of a hidden Markov model they are logarithms of probabilities:
//
//   d[t][k] = x[t][k] + max_j (d[t-1][j] + S[j][k]),  or + start[k] after the best of d[t-1] at a reset;  + stop[k] at the end
//
// Forward the maximum is enough; where it came from is looked for afterwards, along the path alone.
// A row is computed by one thread, and ties go to the first state.
#include "hmm.h"

#include "kernels.h"
#include "parallel.h"

namespace elman::ELMAN_NS {
namespace {

constexpr int64_t stretch = 64;  // steps after which the scores are moved back to about zero

// One row of the most probable path; d (T, padded) keeps the scores of all steps, to go back along them.
template <class Real>
double viterbi_row(Width<Real> w, const Real* x, const Real* start, const Real* stop, const Real* a, const Real* at,
                   int64_t length, const bool* reset, int64_t* path, Real* d, Real* from) {
  if (length == 0) return 0;
  double total = 0;
  const auto row = [&](int64_t t) { return d + t * w.padded; };
  const auto add = [&](int64_t t, Real base) {  // d[t] = base + start + x
    for (int64_t k = 0; k < w.padded; ++k) row(t)[k] = k < w.K ? base + start[k] + x[t * w.K + k] : -infinity<Real>;
  };
  add(0, Real(0));
  for (int64_t t = 1; t < length; ++t) {
    if (reset[t]) {
      add(t, largest(row(t - 1), w.padded));
    } else {
      read(row(t - 1), w.K, from, w.rows, -infinity<Real>);
      product<Best>(a, from, w, row(t));
      int64_t k = 0;
      for (; k + lanes<Real> <= w.K; k += lanes<Real>)
        store(row(t) + k, Vec<Real>(load<Vec<Real>>(row(t) + k) + load<Vec<Real>>(x + t * w.K + k)));
      for (; k < w.K; ++k) row(t)[k] += x[t * w.K + k];
    }
    if (t % stretch) continue;
    // What is common to all states is kept apart, or float32 would lose the differences in a long sum.
    const Real top = largest(row(t), w.padded);
    if (!std::isfinite(top)) continue;
    total += top;
    for (int64_t k = 0; k < w.K; ++k) row(t)[k] -= top;
  }
  for (int64_t k = 0; stop && k < w.K; ++k) row(length - 1)[k] += stop[k];
  const auto first_of = [&](const Real* v, Real best) {
    int64_t k = 0;
    while (k + 1 < w.K && !(v[k] == best)) ++k;
    return k;
  };
  const Real best = largest(row(length - 1), w.padded);
  int64_t k = path[length - 1] = first_of(row(length - 1), best);
  for (int64_t t = length - 1; t > 0; --t) {
    const Real* v = row(t - 1);
    if (!reset[t]) {
      for (int64_t i = 0; i < w.padded; i += lanes<Real>)
        store(from + i, Vec<Real>(load<Vec<Real>>(v + i) + load<Vec<Real>>(at + k * w.padded + i)));
      v = from;
    }
    k = path[t - 1] = first_of(v, largest(v, w.padded));
  }
  return total + double(best);
}

}  // namespace

template <class Real>
void viterbi(const ViterbiInputs<Real>& in, const ViterbiOutputs<Real>& out, int threads) {
  const int64_t steps = in.T, K = in.K;
  const Width<Real> w(K);
  const Buffer<Real> a = pack(in.transition, K, 1, w, -infinity<Real>);
  Buffer<Real> at = allocate<Real>(K * w.padded);
  for (int64_t j = 0; j < K; ++j)
    for (int64_t i = 0; i < w.padded; ++i) at[j * w.padded + i] = i < K ? in.transition[i * K + j] : -infinity<Real>;
  parallel(threads_for(in, threads), in.B, [&](int64_t first, int64_t end) {
    const Buffer<Real> d = allocate<Real>(steps * w.padded), from = allocate<Real>(w.padded + w.rows);
    for (int64_t b = first; b < end; ++b) {
      int64_t* path = out.path + b * steps;
      out.score[b] = Real(viterbi_row(w, in.x + b * steps * K, in.start, in.stop, a.get(), at.get(), in.lengths[b],
                                      in.reset + b * steps, path, d.get(), from.get()));
      std::fill(path + in.lengths[b], path + steps, int64_t(-1));
    }
  });
}

template Viterbi<float> viterbi<float>;
template Viterbi<double> viterbi<double>;

}  // namespace elman::ELMAN_NS
