// The table of kernels. Every instruction set fills one (table.cpp); isa.cpp chooses which one is used.
//
// Kernels are pure functions on arrays: they read what is const, write the rest completely, and the bits of a row do not depend
// on the other rows, on threads, or on how time is cut. What they read and write: scans.h, loops.h, program.h, and here.
#pragma once

#include "fields.h"
#include "loops.h"
#include "program.h"
#include "scans.h"

namespace elman {

// y = x W^T + b: x (M, K), w (N, K), b (N) or null, y (M, N).
template <class Real>
using Linear = void(int64_t M, int64_t N, int64_t K, const Real* x, const Real* w, const Real* b, Real* y, int threads);

// log P(symbol) of M rows under a softmax over l = h W^T + b (softmax.cpp): h (M, K), w (V, K), b (V) or null, symbols (M).
template <class Real>
struct SoftmaxInputs {
  int64_t M, V, K;
  const Real *h, *w, *b;
  const int64_t* symbols;
  ELMAN_FIELDS(M, V, K, h, w, b, symbols)
};
template <class Real>
struct SoftmaxOutputs {
  Real* log_prob;
  ELMAN_FIELDS(log_prob)
};
template <class Real>
using Softmax = void(const SoftmaxInputs<Real>& in, const SoftmaxOutputs<Real>& out, int threads);

// The same and the gradients of sum over m of g[m] log_prob[m]: gh (M, K), gw (V, K), gb (V) or null.
template <class Real>
struct SoftmaxArriving {
  const Real* g;
  ELMAN_FIELDS(g)
};
template <class Real>
struct SoftmaxGradients {
  Real *log_prob, *gh, *gw, *gb;
  ELMAN_FIELDS(log_prob, gh, gw, gb)
};
template <class Real>
using SoftmaxBack = void(const SoftmaxInputs<Real>& in, const SoftmaxArriving<Real>& arriving, const SoftmaxGradients<Real>& to,
                         int threads);

// log p(x) of N numbers under Student's t (densities.cpp), and its gradients with respect to df, mean and scale, which may be null,
// all three of them. That with respect to x is - gmean.
template <class Real>
struct StudentTInputs {
  int64_t N;
  const Real *x, *df, *mean, *scale;
  ELMAN_FIELDS(N, x, df, mean, scale)
};
template <class Real>
struct StudentTOutputs {
  Real *log_prob, *gdf, *gmean, *gscale;
  ELMAN_FIELDS(log_prob, gdf, gmean, gscale)
};
template <class Real>
using StudentTLogProb = void(const StudentTInputs<Real>& in, const StudentTOutputs<Real>& out, int threads);

// The same of N counts under the negative binomial of mean log(1 + e^logits).
template <class Real>
struct NegativeBinomialInputs {
  int64_t N;
  const Real *x, *logits, *shape;
  ELMAN_FIELDS(N, x, logits, shape)
};
template <class Real>
struct NegativeBinomialOutputs {
  Real *log_prob, *glogits, *gshape;
  ELMAN_FIELDS(log_prob, glogits, gshape)
};
template <class Real>
using NegativeBinomialLogProb = void(const NegativeBinomialInputs<Real>& in, const NegativeBinomialOutputs<Real>& out,
                                     int threads);

// y = f(x), n elements.
template <class Real>
using Elementwise = void(int64_t n, const Real* x, Real* y, int threads);

// A symbol (B) for each row of logits (B, V), the symbols seen so far (B, V) and a uniform number (B): choice.h.
template <class Real>
using ChooseSymbols = void(const Choice& choice, int64_t B, int64_t V, const Real* logits, const bool* seen, const double* u,
                           int64_t* symbols);

// Sums over rows are taken in so many groups of them, whatever the threads, and added up in order: the bits are the same.
constexpr int64_t row_groups = 16;

// Hidden Markov models of K states (hmm.cpp, viterbi.cpp): x (B, T, K), start (K), transition (K, K), state (B, K), which the
// most probable path does not read.
template <class Real>
struct HmmInputs {
  int64_t B, T, K;
  const Real *x, *start, *transition, *state;
  const int64_t* lengths;
  const bool* reset;
  ELMAN_FIELDS(B, T, K, x, start, transition, state, lengths, reset)
};
// The filter: log_c (B, T), the predictions p (B, T, K) after each step, which may be null, and the last of them (B, K); shift
// and scale (B, T) are for the gradient. Unless lost (B) is null, a row in which a state may have become too improbable for a
// number and have mattered later is computed in logarithms: lost is true there, and p is the logarithm of the predictions.
template <class Real>
struct HmmOutputs {
  Real *log_c, *p, *shift, *scale, *last;
  bool* lost;
  ELMAN_FIELDS(log_c, p, shift, scale, last, lost)
};
template <class Real>
using HmmFilter = void(const HmmInputs<Real>& in, const HmmOutputs<Real>& out, int threads);

// Its gradients. lost may be null, gp and glast too; they are where it is not. gstart (G, K) and ga (G, K, K), which may be null, are
// sums of G = min(B, row_groups) groups of rows.
template <class Real>
struct HmmArriving {
  const Real *p, *shift, *scale, *glog, *gp, *glast;
  const bool* lost;
  ELMAN_FIELDS(p, shift, scale, glog, gp, glast, lost)
};
template <class Real>
struct HmmGradients {
  Real *gx, *gstart, *ga, *gstate;
  ELMAN_FIELDS(gx, gstart, ga, gstate)
};
template <class Real>
using HmmFilterBack = void(const HmmInputs<Real>& in, const HmmArriving<Real>& arriving, const HmmGradients<Real>& to,
                           int threads);

// What EM expects of sequences that begin at a row's first step and at resets (hmm_expected.cpp): the sum of log p of them all (1),
// and its gradients: gx (B, T, K), which is the posterior, gstart (K) and ga (K, K), which may be null.
template <class Real>
struct ExpectedInputs {
  int64_t B, T, K;
  const Real *x, *start, *transition;
  const int64_t* lengths;
  const bool* reset;
  ELMAN_FIELDS(B, T, K, x, start, transition, lengths, reset)
};
template <class Real>
struct ExpectedOutputs {
  Real *total, *gx, *gstart, *ga;
  ELMAN_FIELDS(total, gx, gstart, ga)
};
template <class Real>
using HmmExpected = void(const ExpectedInputs<Real>& in, const ExpectedOutputs<Real>& out, int threads);

// A step of EM of a hidden Markov model with Gaussian emissions (hmm_gaussian.cpp): observations o (B, T, D), none of them
// missing, mean (K, D). Diagonal, G is 0 and spread the variances (K, D), one for all of a state where it is spherical. Dense, it
// has G lower Cholesky factors (G, D, D), state k using number k * G / K.
template <class Real>
struct GaussianInputs {
  int64_t B, T, K, D, G;
  bool spherical;
  const Real *o, *start, *transition, *mean, *spread;
  const int64_t* lengths;
  const bool* reset;
  ELMAN_FIELDS(B, T, K, D, G, spherical, o, start, transition, mean, spread, lengths, reset)
};
// Priors: Dirichlet of start (K) and transition (K, K); of the means (K, D) with a weight; of variances (K, D), and the least that
// they may be (D), both read where they are diagonal. A state that explains no more than `dead` observations stays as it is, and
// so does what is not to be learned.
template <class Real>
struct GaussianPriors {
  const Real *start, *transition, *mean, *variance, *least;
  double mean_weight, variance_weight, dead;
  bool learns_start, learns_transition, learns_mean, learns_variance;
  ELMAN_FIELDS(start, transition, mean, variance, least, mean_weight, variance_weight, dead, learns_start, learns_transition,
               learns_mean, learns_variance)
};
// objective (3): the log-likelihood; the log prior of the parameters that came in, without that of dense covariances and their
// means; how many variances that were learned are below the least, or infinite. weight (K): how many observations a state
// explains. The parameters after the step; of dense covariances, spread is the scatter of each state (K, D, D) about the mean
// after the step.
template <class Real>
struct GaussianOutputs {
  Real *objective, *weight, *start, *transition, *mean, *spread;
  ELMAN_FIELDS(objective, weight, start, transition, mean, spread)
};
template <class Real>
using HmmGaussian = void(const GaussianInputs<Real>& in, const GaussianPriors<Real>& priors, const GaussianOutputs<Real>& out,
                         int threads);

// The best path through scores: x (B, T, K), start (K) at a row's first step and at resets, transition (K, K) from row to
// column, stop (K), which may be null, at its last step. Out: the states (B, T), -1 past the lengths, and their score (B).
template <class Real>
struct ViterbiInputs {
  int64_t B, T, K;
  const Real *x, *start, *transition, *stop;
  const int64_t* lengths;
  const bool* reset;
  ELMAN_FIELDS(B, T, K, x, start, transition, stop, lengths, reset)
};
template <class Real>
struct ViterbiOutputs {
  int64_t* path;
  Real* score;
  ELMAN_FIELDS(path, score)
};
template <class Real>
using Viterbi = void(const ViterbiInputs<Real>& in, const ViterbiOutputs<Real>& out, int threads);

// y = (x - mean) * scale * gain + bias by rows: x (M, N); scale = 1 / sqrt(mean of squares + eps) once the mean, if it is
// to be (centred), is gone; gain and bias (N) or null; mean and scale (M) come out too.
template <class Real>
struct NormInputs {
  int64_t M, N;
  const Real *x, *gain, *bias;
  double eps;
  bool centred;
  ELMAN_FIELDS(M, N, x, gain, bias, eps, centred)
};
template <class Real>
struct NormOutputs {
  Real *y, *mean, *scale;
  ELMAN_FIELDS(y, mean, scale)
};
template <class Real>
using Norm = void(const NormInputs<Real>& in, const NormOutputs<Real>& out, int threads);

// Its gradients: gx (M, N), ggain and gbias (N).
template <class Real>
struct NormArriving {
  const Real *mean, *scale, *gy;
  ELMAN_FIELDS(mean, scale, gy)
};
template <class Real>
struct NormGradients {
  Real *gx, *ggain, *gbias;
  ELMAN_FIELDS(gx, ggain, gbias)
};
template <class Real>
using NormBack = void(const NormInputs<Real>& in, const NormArriving<Real>& arriving, const NormGradients<Real>& to,
                      int threads);

// Every kernel by its type and its name.
// clang-format off
#define ELMAN_KERNELS(kernel)                    \
  kernel(LinearScan, linear_scan)                \
  kernel(LinearScanBack, linear_scan_back)       \
  kernel(LinearScan, complex_scan)               \
  kernel(LinearScanBack, complex_scan_back)      \
  kernel(SelectiveScan, selective_scan)          \
  kernel(SelectiveScanBack, selective_scan_back) \
  kernel(BankScan, bank_scan)                    \
  kernel(BankScanBack, bank_scan_back)           \
  kernel(MatrixScan, matrix_scan)                \
  kernel(MatrixScanBack, matrix_scan_back)       \
  kernel(LinearScan, max_scan)                   \
  kernel(LinearScanBack, max_scan_back)          \
  kernel(Convolution, convolution)               \
  kernel(ConvolutionBack, convolution_back)      \
  kernel(Linear, linear)                         \
  kernel(Softmax, softmax_log_prob)              \
  kernel(SoftmaxBack, softmax_log_prob_back)     \
  kernel(StudentTLogProb, student_t_log_prob)    \
  kernel(NegativeBinomialLogProb, negative_binomial_log_prob) \
  kernel(Gated, gated)                           \
  kernel(GatedBack, gated_back)                  \
  kernel(GatedPair, gated_pair)                  \
  kernel(GatedPairBack, gated_pair_back)         \
  kernel(Attend, attend)                         \
  kernel(AttendBack, attend_back)                \
  kernel(Attended, attended)                     \
  kernel(AttendedBack, attended_back)            \
  kernel(Gathered, gathered)                     \
  kernel(GatheredBack, gathered_back)            \
  kernel(Elementwise, sigmoid)                   \
  kernel(Elementwise, tanh)                      \
  kernel(Elementwise, softplus)                  \
  kernel(Elementwise, silu)                      \
  kernel(Elementwise, log)                       \
  kernel(Elementwise, exp)                       \
  kernel(Elementwise, sin)                       \
  kernel(Elementwise, cos)                       \
  kernel(HmmFilter, hmm_filter)                  \
  kernel(HmmFilterBack, hmm_filter_back)         \
  kernel(HmmExpected, hmm_expected)              \
  kernel(HmmGaussian, hmm_gaussian)              \
  kernel(Viterbi, viterbi)                       \
  kernel(Norm, norm)                             \
  kernel(NormBack, norm_back)                    \
  kernel(ChooseSymbols, choose_symbols)          \
  kernel(NewProgram, program)
// clang-format on

template <class Real>
struct Table {
#define ELMAN_KERNEL(Type, name) Type<Real>* name;
  ELMAN_KERNELS(ELMAN_KERNEL)
#undef ELMAN_KERNEL
#define ELMAN_OPERATION(Type, name) Append<Real, Type<Real>>* append_##name;
  ELMAN_OPERATIONS(ELMAN_OPERATION)
#undef ELMAN_OPERATION
};

// y (B, T, bytes): each row's first lengths[b] elements of x in reverse order, the rest where they are.
using Reverse = void(int64_t B, int64_t T, int64_t bytes, const char* x, const int64_t* lengths, char* y, int threads);

// words (B, n): the 64-bit words of Philox(key = seed, counter = (block, draw)), two of each block, from block `first` on
// (philox.cpp). draws (B, 2): the seed and the draw of each row.
using Philox = void(int64_t B, int64_t n, int64_t first, const int64_t* draws, int64_t* words, int threads);

// t (B, D): numbers of Student's distribution with df (B, D) degrees of freedom, one event of D for each row (philox.h).
using StudentT = void(int64_t B, int64_t D, const int64_t* draws, const double* df, double* t, int threads);

// 64 bits of `count` bytes (digest.cpp).
using Digest = uint64_t(const unsigned char* bytes, int64_t count);

struct Kernels {
  Table<float> f32;
  Table<double> f64;
  Reverse* reverse;
  Philox* philox;
  StudentT* student_t;
  Digest* digest;
  const GatedKind* gated_kinds;
  int gated_kind_count;

  template <class Real>
  const Table<Real>& of() const {
    if constexpr (sizeof(Real) == 4) return f32;
    else return f64;
  }
};

// memory.cpp
void* take_scratch(size_t bytes);          // of this thread, aligned to a cache line, uninitialised; bytes in whole lines
void give_scratch(void* p, size_t bytes);  // on any thread, with as many bytes as were taken
void release_scratch();                    // what threads keep between calls goes back to the system
int64_t scratch_kept();                    // bytes, of all threads
bool keeps_memory();                       // whether anything is kept: not under the sanitizer of addresses
void prefer_huge_pages(void* begin, int64_t bytes);

// isa.cpp
const Kernels& kernels();       // the chosen table
const char* isa();              // its name
const char* const* isas();      // every name this machine can run, slowest first, null-terminated
void choose(const char* name);  // "" chooses the fastest; throws std::invalid_argument

}  // namespace elman
