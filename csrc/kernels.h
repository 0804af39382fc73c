// The table of kernels. Every instruction set fills one (table.cpp); isa.cpp chooses which one is used.
//
// Letters as in core.py: B batch, T time, C channels. Kernels are pure functions on arrays: they read what is const,
// write the rest completely, and the bits of a row do not depend on the other rows, on threads, or on how time is cut.
#pragma once

#include <cstdint>
#include <memory>

namespace elman {

constexpr int64_t cache_line = 64;  // bytes

// `width` numbers of `itemsize` bytes, rounded up to whole cache lines: the same for every instruction set.
constexpr int64_t padded_to_lines(int64_t width, int64_t itemsize) {
  const int64_t line = cache_line / itemsize;
  return (width + line - 1) / line * line;
}

// A (B, T, C) input: element (b, t, c) is data[b * row + t * time + c]. Zero strides express a broadcast.
template <class Real>
struct Rows {
  const Real* data;
  int64_t row, time;
};

struct Dims {
  int64_t B, T, C;
};

// A family of kernels has up to four structs: what it reads (Inputs), what it writes (Outputs); and for its backward pass,
// which reads the inputs too, what arrives from behind (Arriving) and what it writes (Gradients). bind.cpp fills them by name.

// Linear scan (scan.cpp), real and complex; complex elements are pairs (real, imaginary), and C and strides count pairs.
// h[t] = a[t] * h[t-1] + b[t]; a reset starts from zero; h is zero past the length, last is h at the last valid step.
template <class Real>
struct ScanInputs {
  Dims n;
  Rows<Real> a, b;
  const Real* h0;
  const int64_t* lengths;
  const bool* reset;
};
template <class Real>
struct ScanOutputs {
  Real *h, *last;
};
template <class Real>
using LinearScan = void(const ScanInputs<Real>& in, const ScanOutputs<Real>& out, int threads);

// Its gradients, as Torch defines them for complex numbers: through y = a x comes ga = gy conj(x). b is not read.
// ga is (B, T, C); where `a` does not change in time its sum over time goes to sum (B, C) instead, else sum is null.
template <class Real>
struct ScanArriving {
  const Real* h;
  Rows<Real> gh;
  const Real* glast;
};
template <class Real>
struct ScanGradients {
  Real* ga;
  double* sum;
  Real *gb, *gh0;
};
template <class Real>
using LinearScanBack = void(const ScanInputs<Real>& in, const ScanArriving<Real>& arriving, const ScanGradients<Real>& to,
                            int threads);

// Selective scan (selective.cpp), n.C = D channels with N states each, every sequence of B and C shared by the channels:
// h[t] = exp(delta[t] A) * h[t-1] + delta[t] x[t] B[t], y[t] = sum_n C[t,n] h[t,:,n]. A (D, N), h0 (B, D, N), B and C (B, T, N).
template <class Real>
struct SelectiveInputs {
  Dims n;
  int64_t N, every;  // the state is saved after every so many steps
  Rows<Real> x, delta;
  const Real* A;
  Rows<Real> B, C;
  const Real* h0;
  const int64_t* lengths;
  const bool* reset;
};
// y (B, T, D) and last (B, D, N). saved, if not null, has room for a state each `every` steps: (B, T, R), R * every >= N * (D
// rounded up to 16).
template <class Real>
struct SelectiveOutputs {
  Real *y, *last, *saved;
};
template <class Real>
using SelectiveScan = void(const SelectiveInputs<Real>& in, const SelectiveOutputs<Real>& out, int threads);

// The gradient of A is given for each row, gA (B, D, N).
template <class Real>
struct SelectiveArriving {
  const Real* saved;
  Rows<Real> gy;
  const Real* glast;
};
template <class Real>
struct SelectiveGradients {
  Real *gx, *gdelta;
  double* gA;
  Real *gB, *gC, *gh0;
};
template <class Real>
using SelectiveScanBack = void(const SelectiveInputs<Real>& in, const SelectiveArriving<Real>& arriving,
                               const SelectiveGradients<Real>& to, int threads);

// Banks of complex numbers (bank.cpp), N for each of n.C = D channels; complex numbers are pairs (real, imaginary):
// h[t] = a h[t-1] + b x[t], y[t] = sum_n Re(c[:,n] h[t,:,n]). a, b, c (D, N, 2), h0 (B, D, N, 2).
template <class Real>
struct BankInputs {
  Dims n;
  int64_t N, every;  // the state is saved after every so many steps
  Rows<Real> x;
  const Real *a, *b, *c, *h0;
  const int64_t* lengths;
  const bool* reset;
};
// y (B, T, D) and last (B, D, N, 2). saved, if not null, has room for a state each `every` steps: (B, T, R), R * every >= 2 * N *
// (D rounded up to 16).
template <class Real>
struct BankOutputs {
  Real *y, *last, *saved;
};
template <class Real>
using BankScan = void(const BankInputs<Real>& in, const BankOutputs<Real>& out, int threads);

// The gradients of a, b and c are given for each row, (B, D, N, 2).
template <class Real>
struct BankArriving {
  const Real* saved;
  Rows<Real> gy;
  const Real* glast;
};
template <class Real>
struct BankGradients {
  Real* gx;
  double *ga, *gb, *gc;
  Real* gh0;
};
template <class Real>
using BankScanBack = void(const BankInputs<Real>& in, const BankArriving<Real>& arriving, const BankGradients<Real>& to,
                          int threads);

// Causal convolution of each channel (convolution.cpp): y[t] = bias + sum_k w[k] x[t - K + 1 + k]. w (K, C), bias (C,), window
// (B, K - 1, C): the inputs before the first; last is the window after each row's end.
template <class Real>
struct ConvolutionInputs {
  Dims n;
  int64_t K;
  Rows<Real> x;
  const Real *w, *bias, *window;
  const int64_t* lengths;
  const bool* reset;
};
template <class Real>
struct ConvolutionOutputs {
  Real *y, *last;
};
template <class Real>
using Convolution = void(const ConvolutionInputs<Real>& in, const ConvolutionOutputs<Real>& out, int threads);

// The gradients of w and bias are given for each row, one below the other in sums (B, K + 1, C).
template <class Real>
struct ConvolutionArriving {
  Rows<Real> gy;
  const Real* glast;
};
template <class Real>
struct ConvolutionGradients {
  Real *gx, *gwindow;
  double* sums;
};
template <class Real>
using ConvolutionBack = void(const ConvolutionInputs<Real>& in, const ConvolutionArriving<Real>& arriving,
                             const ConvolutionGradients<Real>& to, int threads);

// y = x W^T + b: x (M, K), w (N, K), b (N) or null, y (M, N).
template <class Real>
using Linear = void(int64_t M, int64_t N, int64_t K, const Real* x, const Real* w, const Real* b, Real* y, int threads);

// A kind of gated cell: what a caller must know of it. gated.h has the cells and the list.
struct GatedKind {
  const char* name;
  int number;    // in the list
  int gates;     // sums per unit
  int saves;     // values per unit and step that the backward pass needs
  int states;    // 1 (h) or 2 (h and c)
  bool matrix;   // whether it has a W
  bool attends;  // whether attended.cpp has it
};

// What an option adds to a gated loop; null where it is off.
template <class Real>
struct GatedOptions {
  Real* peephole;         // (gates - 1, H): of the LSTM's i, f and o; of i and o where they are coupled
  Real* P;                // (R, H): h is P times what it would have been, and R wide
  Real* gain;             // (gates * H): W h' is normalised and multiplied by it; the GRU's candidate by itself
  Real* gain_U;           // (gates * H): so is U x, before b is added; only beside gain
  Real *gain_c, *bias_c;  // (H): the LSTM's c is normalised on its way to h
};

// The weights of a gated cell. Inputs are projected by U (gates * H, D) and b (gates * H), or, where U is null, are the
// projections themselves, D = gates * H. w is (gates * H, R), gates stacked, or null; R is H unless there is a P. extra has
// extra_size numbers, one or one per unit, or is null.
template <class Real>
struct GatedWeights {
  int kind;  // its number in the list
  int64_t D, H, R;
  const Real *U, *b, *w, *extra;
  int64_t extra_size;
  GatedOptions<const Real> options;
};

// One gated loop: x (B, T, D), h0 (B, R), c0 (B, H) or null for cells of one state. `every` is T without checkpoints.
template <class Real>
struct GatedInputs {
  GatedWeights<Real> weights;
  int64_t B, T, every;
  Rows<Real> x;
  const Real *h0, *c0;
  const int64_t* lengths;
  const bool* reset;
};
// saved, if not null, gets what the backward pass needs; checkpoints, if not null, the state before steps 0, every, 2 every, ...
// instead. gated_layout.h says how they lie.
template <class Real>
struct GatedOutputs {
  Real *y, *h, *c, *saved, *checkpoints;
};
template <class Real>
using Gated = void(const GatedInputs<Real>& inputs, const GatedOutputs<Real>& outputs, int threads);

// What its backward pass starts from: outputs of the loop, and gradients that arrive at y and at the last states. Either saved
// or checkpoints is null; what lies between the checkpoints is computed again.
template <class Real>
struct GatedArriving {
  const Real *y, *saved, *checkpoints;
  Rows<Real> gy;
  const Real *gh, *gc;
};
// Any of gx, gU, gb, gw, gextra may be null: it is not wanted then. Those of the options come all or none.
template <class Real>
struct GatedGradients {
  Real *gx, *gU, *gb, *gw, *gextra, *gh0, *gc0;
  GatedOptions<Real> options;
};
template <class Real>
using GatedBack = void(const GatedInputs<Real>& inputs, const GatedArriving<Real>& arriving,
                       const GatedGradients<Real>& gradients, int threads);

// Attention (attention.h): e[j] = query . keys[j], or v . tanh(query + keys[j]) where v (A) is not null; weights = softmax of e
// over j < lengths; context = sum of weights[j] values[j]. query (B, T, A), keys (B, S, A), values (B, S, M), lengths (B).
template <class Real>
struct AttendInputs {
  int64_t B, T, S, A, M;
  const Real *query, *keys, *values, *v;
  const int64_t* lengths;
};
// context (B, T, M), weights (B, T, S): zero past the length.
template <class Real>
struct AttendOutputs {
  Real *context, *weights;
};
template <class Real>
using Attend = void(const AttendInputs<Real>& in, const AttendOutputs<Real>& out, int threads);

// Its gradients. What arrives at the weights may be null. The caller gives zeros, to which gkeys (B, S, A), gvalues (B, S, M) and
// gv (B, A), a row each, or null, are added.
template <class Real>
struct AttendArriving {
  const Real *weights, *gcontext, *gweights;
};
template <class Real>
struct AttendGradients {
  Real *gquery, *gkeys, *gvalues, *gv;
};
template <class Real>
using AttendBack = void(const AttendInputs<Real>& in, const AttendArriving<Real>& arriving, const AttendGradients<Real>& to,
                        int threads);

// A gated loop with attention inside (attended.cpp). u (B, T, gates * H) is what the inputs say to the gates. To that the loop adds
// U f, f being D wide: where O is null the context, found by the query Q h' (A) before the step; else the output of the step
// before, y = tanh(O [h, context] + o) (Z = D wide), its query h itself (A = H). What an array of the other kind would hold is null.
template <class Real>
struct AttendedInputs {
  GatedWeights<Real> weights;
  int64_t B, T;
  Rows<Real> u;
  const Real *h0, *c0, *y0;
  const int64_t* lengths;
  const bool* reset;
  AttendInputs<Real> memory;  // its T and query are not read; its lengths are those of the memory
  const Real *Q, *O, *o;
};
// h (B, T, H), context (B, T, M), y (B, T, Z), query (B, T, A) and weights (B, T, S) are zeros when they are given: nothing is
// written past the lengths. saved is as in GatedOutputs.
template <class Real>
struct AttendedOutputs {
  Real *h, *context, *y, *query, *weights, *last_h, *last_c, *last_y, *saved;
};
template <class Real>
using Attended = void(const AttendedInputs<Real>& in, const AttendedOutputs<Real>& out, int threads);

// Its backward pass leaves products over all steps to the caller: it gives the gradients of u and of the gates' sums over h',
// (B, T, gates * H), of the query Q h' (B, T, A) and of the argument of y's tanh (B, T, Z). All are zeros when they are given.
template <class Real>
struct AttendedArriving {
  const Real *h, *y, *query, *weights, *saved;
  Rows<Real> gh, gcontext, gy;
  const Real *glast_h, *glast_c, *glast_y;
};
template <class Real>
struct AttendedGradients {
  Real *gu, *gsum, *gquery, *gpre, *gkeys, *gvalues, *gv, *gh0, *gc0, *gy0;
};
template <class Real>
using AttendedBack = void(const AttendedInputs<Real>& in, const AttendedArriving<Real>& arriving,
                          const AttendedGradients<Real>& to, int threads);

// A gated loop whose state before is gathered from other rows (gathered.cpp): N rows, level l being the rows level[l] to
// level[l + 1], in front of them rows that are given, h0 and c0 (level[0], H). A row gathers the states of P places of `before`
// (N, P), -1 for zeros; or, unless first (N + 1) is null, of before[first[n]] to before[first[n + 1]], which are added up. Rows of
// the first level gather nothing. Sums begin with row source[n] of u (M, A * H), or n - level[0] where source is null; gates from
// A on, and rows whose source is -1, with b (G * H). w is (G * H, P * H); G is 3 + F: i, g, o and a forget gate for the first F
// places; or 1 where F is 0 and there is no c. Rows gather within their group, ascending in a level, or null.
template <class Real>
struct GatheredInputs {
  int64_t N, levels, M, A, H, P, F;
  const Real *u, *w, *b, *h0, *c0;
  const int64_t *level, *before, *first, *source, *group;
};
// h and c (N, H). saved (N - level[0], gathered_saves, H) and forgets (E, H), of every state that is added up, may be null.
template <class Real>
struct GatheredOutputs {
  Real *h, *c, *saved, *forgets;
};
template <class Real>
using Gathered = void(const GatheredInputs<Real>& in, const GatheredOutputs<Real>& out, int threads);

// Its backward pass leaves products over all rows to the caller: it gives the gradients of u, of the sums (N - level[0], G * H) and
// of the sums of forgets (E, H). gh and gc (N, H) hold what arrives, to which rows add that of the rows that they gathered.
template <class Real>
struct GatheredArriving {
  const Real *h, *c, *saved, *forgets;
};
template <class Real>
struct GatheredGradients {
  Real *gu, *gsum, *gforgets, *gh, *gc;
};
template <class Real>
using GatheredBack = void(const GatheredInputs<Real>& in, const GatheredArriving<Real>& arriving,
                          const GatheredGradients<Real>& to, int threads);

// y = f(x), n elements.
template <class Real>
using Elementwise = void(int64_t n, const Real* x, Real* y, int threads);

// Hidden Markov models of K states (hmm.cpp, viterbi.cpp): x (B, T, K), start (K), transition (K, K), state (B, K), which the
// most probable path does not read.
template <class Real>
struct HmmInputs {
  int64_t B, T, K;
  const Real *x, *start, *transition, *state;
  const int64_t* lengths;
  const bool* reset;
};
// The filter: log_c (B, T), the predictions p (B, T, K) after each step, which may be null, and the last of them (B, K); shift
// and scale (B, T) are for the gradient. Unless lost (B) is null, a row in which a state may have become too improbable for a
// number and have mattered later is computed in logarithms: lost is true there, and p is the logarithm of the predictions.
template <class Real>
struct HmmOutputs {
  Real *log_c, *p, *shift, *scale, *last;
  bool* lost;
};
template <class Real>
using HmmFilter = void(const HmmInputs<Real>& in, const HmmOutputs<Real>& out, int threads);

// Its gradients. lost may be null, gp and glast too; they are where it is not. gstart (G, K) and ga (G, K, K), which may be null, are
// sums of G = min(B, 16) groups of rows.
template <class Real>
struct HmmArriving {
  const Real *p, *shift, *scale, *glog, *gp, *glast;
  const bool* lost;
};
template <class Real>
struct HmmGradients {
  Real *gx, *gstart, *ga, *gstate;
};
template <class Real>
using HmmFilterBack = void(const HmmInputs<Real>& in, const HmmArriving<Real>& arriving, const HmmGradients<Real>& to,
                           int threads);

// The best path through scores: x (B, T, K), start (K) at a row's first step and at resets, transition (K, K) from row to
// column, stop (K), which may be null, at its last step. Out: the states (B, T), -1 past the lengths, and their score (B).
template <class Real>
struct ViterbiInputs {
  int64_t B, T, K;
  const Real *x, *start, *transition, *stop;
  const int64_t* lengths;
  const bool* reset;
};
template <class Real>
struct ViterbiOutputs {
  int64_t* path;
  Real* score;
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
};
template <class Real>
struct NormOutputs {
  Real *y, *mean, *scale;
};
template <class Real>
using Norm = void(const NormInputs<Real>& in, const NormOutputs<Real>& out, int threads);

// Its gradients: gx (M, N), ggain and gbias (N).
template <class Real>
struct NormArriving {
  const Real *mean, *scale, *gy;
};
template <class Real>
struct NormGradients {
  Real *gx, *ggain, *gbias;
};
template <class Real>
using NormBack = void(const NormInputs<Real>& in, const NormArriving<Real>& arriving, const NormGradients<Real>& to,
                      int threads);

// The rows of a program, each with its state in one stretch of state_row numbers, | leaf | leaf | ... |, every leaf in whole
// cache lines. `rows` names `count` of them, none twice; null names all.
template <class Real>
struct Stream {
  virtual ~Stream() = default;
  virtual int64_t rows() const = 0;
  virtual int64_t state_row() const = 0;
  virtual int64_t input_width() const = 0;
  virtual int64_t output_width() const = 0;
  virtual void step(const Real* x, const int64_t* rows, int64_t count, Real* y, int threads) = 0;
  virtual void step_symbols(const int64_t* symbols, const int64_t* rows, int64_t count, Real* y, int threads) = 0;
  // A step of `count` states of their own, before and after (count, state_row): no row of the stream is touched.
  virtual void carry(const Real* x, int64_t count, const Real* before, Real* after, Real* y, int threads) = 0;
  virtual void take(const int64_t* rows, int64_t count, Real* to) const = 0;  // (count, state_row)
  virtual void put(const int64_t* rows, int64_t count, const Real* from) = 0;
  virtual void reorder(const int64_t* parents) = 0;  // (rows): row i becomes what row parents[i] was
  // What a program that draws says of H steps ahead, `each` paths from every row, whose state stays: y (rows * each, H, output).
  // x (rows, H, input), of which all but the first step of a path begin with what the step before drew; draws (rows * each, 2).
  virtual void paths(const Real* x, int64_t H, const int64_t* draws, int64_t each, double* y, int threads) const = 0;
};

// A program: steps appended once, with the weights that they pack, then run by any number of streams. A slot is an array (rows,
// width); methods that return an int return the slot that they fill.
template <class Real>
struct Program {
  virtual ~Program() = default;
  virtual int slot(int64_t width) = 0;                                  // for an input, or what copy fills
  virtual int state(int64_t width) = 0;                                 // a leaf of the state
  virtual int constant(int64_t width, const Real* values) = 0;          // the same values in every row
  virtual int lookup(int64_t V, int64_t width, const Real* table) = 0;  // the rows of a table (V, width) that symbols name
  virtual int linear(int x, int64_t N, const Real* w, const Real* b) = 0;
  // Projects x, adds U_fed times `fed` unless that is -1, then steps the states h and c (or -1) in place.
  virtual void gated(const GatedWeights<Real>& weights, int x, int fed, const Real* U_fed, int h, int c) = 0;
  // The context of each row's query, and its weights, in a slot as wide as the memory is long. Rows of the stream from each * i
  // on read row i of the memory; its T and query are not read.
  virtual int attend(int query, int weights, const AttendInputs<Real>& memory, int64_t each) = 0;
  virtual void scan(bool is_complex, int a, int b, int h) = 0;  // h = a * h + b, in place
  // The selective scan and the convolution, with the states h (N for each column of x) and window (K - 1 times x) in place.
  virtual int selective(int x, int delta, int64_t N, const Real* A, int B, int C, int h) = 0;
  virtual int bank(int x, int64_t N, const Real* a, const Real* b, const Real* c, int h) = 0;  // h: N pairs a column of x
  virtual void filter(int x, const Real* transition, int p) = 0;  // p is the prediction of a hidden Markov model, in place
  virtual int convolution(int x, int64_t K, const Real* w, const Real* bias, int window) = 0;
  virtual int map(int function, int x) = 0;             // sigmoid, tanh, softplus, silu, log, relu, absolute value
  virtual int combine(int function, int x, int y) = 0;  // add, multiply, divide, the larger, the smaller
  virtual int choose(int condition, int x, int y) = 0;  // x where the condition is above zero, else y
  virtual int gather(int x, const int64_t* columns, int64_t count) = 0;  // columns of x, in any order, any of them often
  // The inputs of so many steps ago, side by side; past (the longest delay times x) holds them, oldest first, in place.
  virtual int lags(int x, const int64_t* delays, int64_t count, int past) = 0;
  // sum = decay * sum + x, total = decay * total + weight, in place, leaves of doubles whatever Real is: sum / total, 0 without
  // any weight. `weight` and `total` are as wide as x, or one column that counts for all.
  virtual int mean(double decay, int x, int weight, int sum, int total) = 0;
  virtual int norm(bool centred, int x, const Real* gain, const Real* bias, double eps) = 0;
  virtual void copy(int x, int64_t first, int64_t count, int y, int64_t to) = 0;
  virtual int cut(int x, int64_t first, int64_t count) = 0;  // columns [first, first + count) of x
  virtual int student_t(int df, int mean, int scale) = 0;    // mean + scale t, t drawn: for `paths` alone
  virtual void finish(int in, int out) = 0;                  // which slots a step fills and gives; nothing is appended after it
  virtual std::unique_ptr<Stream<Real>> stream(int64_t B) = 0;  // zeros; must not outlive the program
  virtual int64_t width(int slot) const = 0;
  virtual int64_t state_begin(int slot) const = 0;  // where a leaf begins in a row's stretch
};
template <class Real>
using NewProgram = Program<Real>*();

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
  kernel(Convolution, convolution)               \
  kernel(ConvolutionBack, convolution_back)      \
  kernel(Linear, linear)                         \
  kernel(Gated, gated)                           \
  kernel(GatedBack, gated_back)                  \
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
  kernel(HmmFilter, hmm_filter)                  \
  kernel(HmmFilterBack, hmm_filter_back)         \
  kernel(Viterbi, viterbi)                       \
  kernel(Norm, norm)                             \
  kernel(NormBack, norm_back)                    \
  kernel(NewProgram, program)
// clang-format on

template <class Real>
struct Table {
#define ELMAN_KERNEL(Type, name) Type<Real>* name;
  ELMAN_KERNELS(ELMAN_KERNEL)
#undef ELMAN_KERNEL
};

// y (B, T, bytes): each row's first lengths[b] elements of x in reverse order, the rest where they are.
using Reverse = void(int64_t B, int64_t T, int64_t bytes, const char* x, const int64_t* lengths, char* y, int threads);

// words (B, n): the 64-bit words of Philox(key = seed, counter = (block, draw)), two of each block, from block `first` on
// (philox.cpp). draws (B, 2): the seed and the draw of each row.
using Philox = void(int64_t B, int64_t n, int64_t first, const int64_t* draws, int64_t* words, int threads);

// t (B, D): numbers of Student's distribution with df (B, D) degrees of freedom, one event of D for each row (philox.h).
using StudentT = void(int64_t B, int64_t D, const int64_t* draws, const double* df, double* t, int threads);

struct Kernels {
  Table<float> f32;
  Table<double> f64;
  Reverse* reverse;
  Philox* philox;
  StudentT* student_t;
  const GatedKind* gated_kinds;
  int gated_kind_count;

  template <class Real>
  const Table<Real>& of() const {
    if constexpr (sizeof(Real) == 4) return f32;
    else return f64;
  }
};

// memory.cpp
void prefer_huge_pages(void* begin, int64_t bytes);

// isa.cpp
const Kernels& kernels();       // the chosen table
const char* isa();              // its name
const char* const* isas();      // every name this machine can run, slowest first, null-terminated
void choose(const char* name);  // "" chooses the fastest; throws std::invalid_argument

}  // namespace elman
