// The most probable path of a hidden Markov model (A. J. Viterbi, 1967):
//
//   d[t][k] = x[t][k] + max_j (d[t-1][j] + log A[j][k]),  or + log start[k] after the best of d[t-1] at a reset
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
template <class T>
double viterbi_row(Width<T> w, const T* x, const T* log_start, const T* a, const T* at, int64_t length, const bool* reset,
                   int64_t* path, T* d, T* from) {
  if (length == 0) return 0;
  double total = 0;
  const auto row = [&](int64_t t) { return d + t * w.padded; };
  const auto add = [&](int64_t t, T base) {  // d[t] = base + log_start + x
    for (int64_t k = 0; k < w.padded; ++k) row(t)[k] = k < w.K ? base + log_start[k] + x[t * w.K + k] : -infinity<T>;
  };
  add(0, T(0));
  for (int64_t t = 1; t < length; ++t) {
    if (reset[t]) {
      add(t, largest(row(t - 1), w.padded));
    } else {
      read(row(t - 1), w.K, from, w.rows, -infinity<T>);
      product<Best>(a, from, w, row(t));
      int64_t k = 0;
      for (; k + lanes<T> <= w.K; k += lanes<T>)
        store(row(t) + k, Vec<T>(load<Vec<T>>(row(t) + k) + load<Vec<T>>(x + t * w.K + k)));
      for (; k < w.K; ++k) row(t)[k] += x[t * w.K + k];
    }
    if (t % stretch) continue;
    // What is common to all states is kept apart, or float32 would lose the differences in a long sum.
    const T top = largest(row(t), w.padded);
    if (!std::isfinite(top)) continue;
    total += top;
    for (int64_t k = 0; k < w.K; ++k) row(t)[k] -= top;
  }
  const auto first_of = [&](const T* v, T best) {
    int64_t k = 0;
    while (k + 1 < w.K && !(v[k] == best)) ++k;
    return k;
  };
  const T best = largest(row(length - 1), w.padded);
  int64_t k = path[length - 1] = first_of(row(length - 1), best);
  for (int64_t t = length - 1; t > 0; --t) {
    const T* v = row(t - 1);
    if (!reset[t]) {
      for (int64_t i = 0; i < w.padded; i += lanes<T>)
        store(from + i, Vec<T>(load<Vec<T>>(v + i) + load<Vec<T>>(at + k * w.padded + i)));
      v = from;
    }
    k = path[t - 1] = first_of(v, largest(v, w.padded));
  }
  return total + double(best);
}

template <class T>
Buffer<T> logs(const T* p, int64_t n) {
  Buffer<T> y = allocate<T>(n);
  for (int64_t i = 0; i < n; ++i) y[i] = std::log(p[i]);
  return y;
}

}  // namespace

template <class T>
void viterbi(const HmmInputs<T>& in, const ViterbiOutputs<T>& out, int threads) {
  const int64_t steps = in.T, K = in.K;
  const Width<T> w(K);
  const Buffer<T> log_start = logs(in.start, K), log_a = logs(in.transition, K * K);
  const Buffer<T> a = pack(log_a.get(), K, 1, w, -infinity<T>);
  Buffer<T> at = allocate<T>(K * w.padded);
  for (int64_t j = 0; j < K; ++j)
    for (int64_t i = 0; i < w.padded; ++i) at[j * w.padded + i] = i < K ? log_a[i * K + j] : -infinity<T>;
  parallel(threads_for(in, threads), in.B, [&](int64_t first, int64_t end) {
    const Buffer<T> d = allocate<T>(steps * w.padded), from = allocate<T>(w.padded + w.rows);
    for (int64_t b = first; b < end; ++b) {
      int64_t* path = out.path + b * steps;
      out.score[b] = T(viterbi_row(w, in.x + b * steps * K, log_start.get(), a.get(), at.get(), in.lengths[b],
                                   in.reset + b * steps, path, d.get(), from.get()));
      std::fill(path + in.lengths[b], path + steps, int64_t(-1));
    }
  });
}

template Viterbi<float> viterbi<float>;
template Viterbi<double> viterbi<double>;

}  // namespace elman::ELMAN_NS
