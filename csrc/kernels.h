// The table of kernels. Every instruction set fills one (table.cpp); isa.cpp chooses which one is used.
//
// Letters as in core.py: B batch, T time, C channels. Kernels are pure functions on arrays: they read what is const,
// write the rest completely, and the bits of a row do not depend on the other rows, on threads, or on how time is cut.
#pragma once

#include <cstdint>

namespace elman {

// A (B, T, C) input: element (b, t, c) is data[b * row + t * time + c]. Zero strides express a broadcast.
template <class T>
struct Rows {
  const T* data;
  int64_t row, time;
};

struct Dims {
  int64_t B, T, C;
};

// Linear scan (scan.cpp), real and complex; complex elements are pairs (real, imaginary), and C and strides count pairs.
// h[t] = a[t] * h[t-1] + b[t]; a reset starts from zero; h is zero past the length, last is h at the last valid step.
template <class T>
using LinearScan = void(Dims n, Rows<T> a, Rows<T> b, const T* h0, const int64_t* lengths, const bool* reset,  //
                        T* h, T* last, int threads);

// Gradients of the above, as Torch defines them for complex numbers: through y = a x comes ga = gy conj(x).
// ga is (B, T, C); where `a` does not change in time its sum over time goes to sum (B, C) instead, else sum is null.
template <class T>
using LinearScanBack = void(Dims n, Rows<T> a, const T* h0, const int64_t* lengths, const bool* reset, const T* h,  //
                            Rows<T> gh, const T* glast, T* ga, double* sum, T* gb, T* gh0, int threads);

// Selective scan (selective.cpp), n.C = D channels with N states each, every sequence of B and C shared by the channels:
// h[t] = exp(delta[t] A) * h[t-1] + delta[t] x[t] B[t], y[t] = sum_n C[t,n] h[t,:,n]. A (D, N), h0 (B, D, N), B and C (B, T, N).
template <class T>
struct SelectiveInputs {
  Dims n;
  int64_t N, every;  // the state is saved after every so many steps
  Rows<T> x, delta;
  const T* A;
  Rows<T> B, C;
  const T* h0;
  const int64_t* lengths;
  const bool* reset;
};
// y (B, T, D) and last (B, D, N). saved, if not null, has room for a state each `every` steps: (B, T, R), R * every >= N * (D
// rounded up to 16).
template <class T>
using SelectiveScan = void(const SelectiveInputs<T>& in, T* y, T* last, T* saved, int threads);
// Its gradients; that of A for each row, gA (B, D, N).
template <class T>
using SelectiveScanBack = void(const SelectiveInputs<T>& in, const T* saved, Rows<T> gy, const T* glast, T* gx, T* gdelta,
                               double* gA, T* gB, T* gC, T* gh0, int threads);

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
template <class T>
struct ConvolutionInputs {
  Dims n;
  int64_t K;
  Rows<T> x;
  const T *w, *bias, *window;
  const int64_t* lengths;
  const bool* reset;
};
template <class T>
using Convolution = void(const ConvolutionInputs<T>& in, T* y, T* last, int threads);
// Its gradients; those of w and bias for each row, one below the other in sums (B, K + 1, C).
template <class T>
using ConvolutionBack = void(const ConvolutionInputs<T>& in, Rows<T> gy, const T* glast, T* gx, T* gwindow, double* sums,
                             int threads);

// y = x W^T + b: x (M, K), w (N, K), b (N) or null, y (M, N).
template <class T>
using Linear = void(int64_t M, int64_t N, int64_t K, const T* x, const T* w, const T* b, T* y, int threads);

// What an option adds to a gated loop; null where it is off.
template <class Real>
struct GatedOptions {
  Real* peephole;  // (gates - 1, H): of the LSTM's i, f and o; of i and o where they are coupled
  Real* P;         // (R, H): h is P times what it would have been, and R wide
  Real* gain;      // (gates * H): W h' is normalised and multiplied by it; the GRU's candidate by itself
  Real* gain_U;    // (gates * H): so is U x, before b is added; only beside gain
  Real *gain_c, *bias_c;  // (H): the LSTM's c is normalised on its way to h
};

// One gated loop; gated.h has the cells. Inputs x (B, T, D) are projected by U (gates * H, D) and b (gates * H), or, where U is
// null, are the projections themselves, D = gates * H. w is (gates * H, R), gates stacked, or null; R is H unless there is a P.
// extra has extra_size numbers, one or one per unit, or is null; c0 and c are null for cells of one state.
// saved, if not null, gets what the way back needs, saved_row numbers for each row and step: (values per unit) * (H rounded up
// to 64 bytes); where W h' or U x is normalised, a value more for each gate of either; where anything is, 64 bytes behind that.
// kept, if not null, gets the state before steps 0, every, 2 every, ... instead, of each row in the order of their lengths, padded
// as the loop has it: (T / every rounded up, B, R (+ H for c), both rounded up to 64 bytes). Without it `every` is T.
template <class Real>
struct GatedLoop {
  int64_t B, T, D, H, R;
  Rows<Real> x;
  const Real *U, *b, *w, *extra;
  int64_t extra_size;
  GatedOptions<const Real> with;
  const Real *h0, *c0;
  const int64_t* lengths;
  const bool* reset;
  Real *y, *h, *c, *saved;
  int64_t saved_row, every;
  Real* kept;
};
template <class T>
using Gated = void(int kind, const GatedLoop<T>& loop, int threads);

// Its gradients. Any of gx, gU, gb, gw, gextra may be null: it is not wanted then. Those of the options come all or none.
// Either saved or kept is null; what lies between the states that were kept is computed again.
template <class Real>
struct GatedLoopBack {
  int64_t B, T, D, H, R;
  Rows<Real> x;
  const Real *U, *b, *w, *extra;
  int64_t extra_size;
  GatedOptions<const Real> with;
  const Real *h0, *c0;
  const int64_t* lengths;
  const bool* reset;
  const Real *y, *saved;
  int64_t saved_row, every;
  const Real* kept;
  Rows<Real> gy;
  const Real *gh, *gc;
  Real *gx, *gU, *gb, *gw, *gextra, *gh0, *gc0;
  GatedOptions<Real> gwith;
};
template <class T>
using GatedBack = void(int kind, const GatedLoopBack<T>& loop, int threads);

// y = f(x), n elements.
template <class T>
using Elementwise = void(int64_t n, const T* x, T* y, int threads);

// The filter of a hidden Markov model, x (B, N, K); p (B, N, K) may be null; shift and scale (B, N) are for the gradient.
template <class T>
using HmmFilter = void(int64_t B, int64_t N, int64_t K, const T* x, const T* start, const T* transition, const T* state,
                       const int64_t* lengths, const bool* reset, T* log_c, T* p, T* shift, T* scale, T* last, int threads);

// Gradients of the above; gp and glast may be null. gstart (G, K) and ga (G, K, K), which may be null, are sums of G = min(B, 16)
// groups of rows.
template <class T>
using HmmFilterBack = void(int64_t B, int64_t N, int64_t K, const T* x, const T* transition, const T* p, const T* shift,
                           const T* scale, const int64_t* lengths, const bool* reset, const T* glog, const T* gp,
                           const T* glast, T* gx, T* gstart, T* ga, T* gstate, int threads);

// The most probable states (B, N), -1 past the lengths, and the logarithm of their joint probability with x (B).
template <class T>
using Viterbi = void(int64_t B, int64_t N, int64_t K, const T* x, const T* start, const T* transition, const int64_t* lengths,
                     const bool* reset, int64_t* path, T* score, int threads);
// y = (x - mean) * scale * gain + bias by rows: x (M, N); scale = 1 / sqrt(mean of squares + eps) once the mean, if it is
// to be (centred), is gone; gain and bias (N) or null; mean and scale (M) come out too.
template <class T>
using Norm = void(int64_t M, int64_t N, const T* x, const T* gain, const T* bias, T eps, bool centred, T* y, T* mean,
                  T* scale, int threads);

// Its gradients: gx (M, N), ggain and gbias (N).
template <class T>
using NormBack = void(int64_t M, int64_t N, const T* x, const T* gain, const T* mean, const T* scale, const T* gy,
                      bool centred, T* gx, T* ggain, T* gbias, int threads);

// A stream: steps appended once, with the weights they pack, then run for every input of B rows. A slot is a (B, width)
// array; methods that return an int return the slot they fill. Kinds, gates and extra are those of a gated loop.
template <class T>
struct Program {
  virtual ~Program() = default;
  virtual int slot(int64_t width) = 0;  // zeros: an input, a state
  virtual int constant(int64_t width, const T* values) = 0;  // the same values in every row
  virtual int64_t rows() const = 0;
  virtual int64_t width(int slot) const = 0;
  virtual void write(int slot, const T* from) = 0;  // (B, width), side by side
  virtual void read(int slot, T* to) const = 0;
  virtual int linear(int x, int64_t N, const T* w, const T* b) = 0;
  // Projects x by U (gates * H, D) and b, then steps the states h and c (or -1) in place.
  virtual void gated(int kind, int gates, int x, const T* U, const T* b, const T* w, const T* extra, int64_t extra_size,
                     const GatedOptions<const T>& with, int h, int c) = 0;
  virtual void scan(bool is_complex, int a, int b, int h) = 0;  // h = a * h + b, in place
  // The selective scan and the convolution, with the states h (N for each column of x) and window (K - 1 times x) in place.
  virtual int selective(int x, int delta, int64_t N, const T* A, int B, int C, int h) = 0;
  virtual int bank(int x, int64_t N, const T* a, const T* b, const T* c, int h) = 0;  // h: N pairs for each column of x
  virtual int convolution(int x, int64_t K, const T* w, const T* bias, int window) = 0;
  virtual int map(int function, int x) = 0;                     // sigmoid, tanh, softplus, silu, relu
  virtual int combine(int function, int x, int y) = 0;          // add, multiply
  virtual int norm(bool centred, int x, const T* gain, const T* bias, T eps) = 0;
  virtual void copy(int x, int64_t first, int64_t count, int y, int64_t to) = 0;
  virtual int lookup(int64_t V, int64_t width, const T* table) = 0;  // the rows of a table (V, width) that symbols name
  virtual void run(int in, const T* x, int out, T* y) = 0;
  virtual void run_symbols(int in, const int64_t* symbols, int out, T* y) = 0;  // `in` is a lookup, symbols (B,)
};
template <class T>
using NewProgram = Program<T>*(int64_t B);

template <class T>
struct Table {
  LinearScan<T>* linear_scan;
  LinearScanBack<T>* linear_scan_back;
  LinearScan<T>* complex_scan;
  LinearScanBack<T>* complex_scan_back;
  SelectiveScan<T>* selective_scan;
  SelectiveScanBack<T>* selective_scan_back;
  BankScan<T>* bank_scan;
  BankScanBack<T>* bank_scan_back;
  Convolution<T>* convolution;
  ConvolutionBack<T>* convolution_back;
  Linear<T>* linear;
  Gated<T>* gated;
  GatedBack<T>* gated_back;
  Elementwise<T>*sigmoid, *tanh, *softplus, *silu, *log;
  HmmFilter<T>* hmm_filter;
  HmmFilterBack<T>* hmm_filter_back;
  Viterbi<T>* viterbi;
  Norm<T>* norm;
  NormBack<T>* norm_back;
  NewProgram<T>* program;
};

// y (B, N, bytes): each row's first lengths[b] elements of x in reverse order, the rest where they are.
using Reverse = void(int64_t B, int64_t N, int64_t bytes, const char* x, const int64_t* lengths, char* y, int threads);

// words (B, n): the 64-bit words of Philox(key = seed, counter = (block, draw)), two of each block, from block `first` on
// (philox.cpp). draws (B, 2): the seed and the draw of each row.
using Philox = void(int64_t B, int64_t n, int64_t first, const int64_t* draws, int64_t* words, int threads);

struct Kernels {
  Table<float> f32;
  Table<double> f64;
  Reverse* reverse;
  Philox* philox;

  template <class T>
  const Table<T>& of() const {
    if constexpr (sizeof(T) == 4) return f32;
    else return f64;
  }
};

// memory.cpp
void prefer_huge_pages(void* begin, int64_t bytes);

// isa.cpp
const Kernels& kernels();      // the chosen table
const char* isa();             // its name
const char* const* isas();     // every name this machine can run, slowest first, null-terminated
void choose(const char* name); // "" chooses the fastest; throws std::invalid_argument

}  // namespace elman
