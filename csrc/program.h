// Programs and streams: what a step of a model is described by, and what steps rows of states.
//
// An operation of a program is a struct that names the slots that it reads, and a function that appends it and returns the slot
// that it fills; the file of its family has both the kernel and the operation, so that the bits are the same.
#pragma once

#include <memory>

#include "loops.h"

namespace elman {

// How a symbol is chosen (choice.h): with probability in proportion to P^(1 / temperature), of the top_k most probable ones (0
// for all) those that have top_p together; the most probable one where the temperature is 0. What log P of a symbol that was
// seen is multiplied by; and symbols that are not chosen.
struct Choice {
  double temperature;
  int64_t top_k;
  double top_p, penalty;
  const int64_t* banned;
  int64_t banned_count;
  ELMAN_FIELDS(temperature, top_k, top_p, penalty, banned, banned_count)
};

// What the rows of a stream go on from when they write: the symbol that each has not read yet, (rows); what each has seen,
// (rows, V); the seed and the number of draws of each, (rows, 2).
struct Pending {
  int64_t* symbols;
  bool* seen;
  int64_t* draws;
  ELMAN_FIELDS(symbols, seen, draws)
};

// The rows of a program, each with its state in one stretch of state_row numbers, | leaf | leaf | ... |, every leaf in whole
// cache lines. `rows` names `count` of them, none twice; null names all.
template <class Real>
struct Stream {
  virtual ~Stream() = default;
  virtual int64_t rows() const = 0;
  virtual int64_t state_row() const = 0;
  virtual int64_t input_width() const = 0;
  virtual int64_t output_width() const = 0;
  virtual int64_t work() const = 0;  // of a step of a row, in multiply-adds or about
  virtual bool divides() const = 0;  // whether a step of one row is worth several threads
  virtual void step(const Real* x, const int64_t* rows, int64_t count, Real* y, int threads) = 0;
  virtual void step_symbols(const int64_t* symbols, const int64_t* rows, int64_t count, Real* y, int threads) = 0;
  // A step of `count` states of their own, before and after (count, state_row): no row of the stream is touched.
  virtual void carry(const Real* x, int64_t count, const Real* before, Real* after, Real* y, int threads) = 0;
  // A row reads T symbols; what follows them is not computed.
  virtual void read(const int64_t* symbols, int64_t T, int64_t row, int threads) = 0;
  // n symbols of each of `count` rows, chosen by the logits that a step ends in, or fewer of one row alone, which ends with the
  // symbol `end`: how many. written (n, count).
  virtual int64_t write(const Choice& choice, const Pending& pending, const int64_t* rows, int64_t count, int64_t n,
                        int64_t end, int64_t* written, int threads) = 0;
  virtual void take(const int64_t* rows, int64_t count, Real* to) const = 0;  // (count, state_row)
  virtual void put(const int64_t* rows, int64_t count, const Real* from) = 0;
  virtual void reorder(const int64_t* parents) = 0;  // (rows): row i becomes what row parents[i] was
  // What a program that draws says of H steps ahead, `each` paths from every row, whose state stays: y (rows * each, H, output).
  // x (rows, H, input), of which all but the first step of a path begin with what the step before drew; draws (rows * each, 2).
  virtual void paths(const Real* x, int64_t H, const int64_t* draws, int64_t each, double* y, int threads) const = 0;
};

// A program: operations appended once, with the weights that they pack, then run by any number of streams. A slot is an array
// (rows, width), called by its number.
template <class Real>
struct Program {
  virtual ~Program() = default;
  virtual int slot(int64_t width) = 0;              // for an input, or what copy fills
  virtual int state(int64_t width) = 0;             // a leaf of the state
  virtual int64_t state_begin(int slot) const = 0;  // where a leaf begins in a row's stretch
  virtual void states_known() = 0;                  // what is appended from here on changes no state
  virtual void finish(int in, int out) = 0;         // which slots a step fills and gives; nothing is appended after it
  virtual std::unique_ptr<Stream<Real>> stream(int64_t B) = 0;  // zeros; must not outlive the program
};
// How the weights of products are stored, in a program of float; one of double stores them whole. Python reads the names.
#define ELMAN_STORED_AS(code) code(whole) code(bfloat16) code(int8)
#define ELMAN_CODE(name) name,
enum class Stored { ELMAN_STORED_AS(ELMAN_CODE) };
#undef ELMAN_CODE

template <class Real>
using NewProgram = Program<Real>*(Stored stored);

// The same values in every row.
template <class Real>
struct ConstantOperation {
  int64_t width;
  const Real* values;
  ELMAN_FIELDS(width, values)
};

// The rows of a table (V, width) that symbols name.
template <class Real>
struct LookupOperation {
  int64_t V, width;
  const Real* table;
  ELMAN_FIELDS(V, width, table)
};

// x W^T + b, w (N, width of x), b (N) or null.
template <class Real>
struct LinearOperation {
  int x;
  int64_t N;
  const Real *w, *b;
  ELMAN_FIELDS(x, N, w, b)
};

// The same of windows of K columns, `stride` apart: w (N, K), the outputs of all windows side by side.
template <class Real>
struct WindowsOperation {
  int x;
  int64_t N, K, stride;
  const Real *w, *b;
  ELMAN_FIELDS(x, N, K, stride, w, b)
};

// Projects x, adds U_fed times `fed` unless that is -1, then steps the states h and c (or -1) in place.
template <class Real>
struct GatedOperation {
  GatedWeights<Real> weights;
  int x, fed;
  const Real* U_fed;
  int h, c;
  ELMAN_FIELDS(weights, x, fed, U_fed, h, c)
};

// The context of each row's query, and its weights, in a slot as wide as the memory is long. Rows of the stream from each * i on
// read row i of the memory.
template <class Real>
struct AttendOperation {
  int query, weights;
  Memory<Real> memory;
  int64_t each;
  ELMAN_FIELDS(query, weights, memory, each)
};

// h = a * h + b, in place; slots of (real, imaginary) pairs if they are complex.
template <class Real>
struct ScanOperation {
  bool is_complex;
  int a, b, h;
  ELMAN_FIELDS(is_complex, a, b, h)
};

// The selective scan, h (N for each column of x) in place.
template <class Real>
struct SelectiveOperation {
  int x, delta;
  int64_t N;
  const Real* A;
  int B, C, h;
  ELMAN_FIELDS(x, delta, N, A, B, C, h)
};

// A bank, h (N pairs for each column of x) in place.
template <class Real>
struct BankOperation {
  int x;
  int64_t N;
  const Real *a, *b, *c;
  int h;
  ELMAN_FIELDS(x, N, a, b, c, h)
};

// The scan of matrices, S (H * K * V) in place: all numbers of a row side by side. a is H wide for one a head, H * K for one a
// key; a, b, alpha and beta may be -1.
template <class Real>
struct MatrixOperation {
  int64_t H, K, V;
  int q, k, v, a, b, alpha, beta, S;
  ELMAN_FIELDS(H, K, V, q, k, v, a, b, alpha, beta, S)
};

// The filter of a hidden Markov model, its prediction p in place.
template <class Real>
struct FilterOperation {
  int x;
  const Real* transition;
  int p;
  ELMAN_FIELDS(x, transition, p)
};

// The convolution, window (K - 1 times x) in place.
template <class Real>
struct ConvolutionOperation {
  int x;
  int64_t K;
  const Real *w, *bias;
  int window;
  ELMAN_FIELDS(x, K, w, bias, window)
};

// The inputs of so many steps ago, side by side; past (the longest delay times x) holds them, oldest first, in place.
template <class Real>
struct LagsOperation {
  int x;
  const int64_t* delays;
  int64_t count;
  int past;
  ELMAN_FIELDS(x, delays, count, past)
};

// sum = decay * sum + x, total = decay * total + weight, in place, leaves of doubles whatever Real is: sum / total, 0 without any
// weight. `weight` and `total` are as wide as x, or one column that counts for all.
template <class Real>
struct MeanOperation {
  double decay;
  int x, weight, sum, total;
  ELMAN_FIELDS(decay, x, weight, sum, total)
};

// What `map` makes of a number and `combine` of two. Python reads the names and the codes from the module.
#define ELMAN_FUNCTIONS(code) \
  code(sigmoid) code(tanh) code(softplus) code(silu) code(log) code(exp) code(relu) code(abs) code(sqrt) code(sin) code(cos)
#define ELMAN_COMBINATIONS(code) code(add) code(mul) code(div) code(maximum) code(minimum)
#define ELMAN_CODE(name) name,
enum class Function { ELMAN_FUNCTIONS(ELMAN_CODE) };
enum class Combination { ELMAN_COMBINATIONS(ELMAN_CODE) };
#undef ELMAN_CODE

template <class Real>
struct MapOperation {
  Function function;
  int x;
  ELMAN_FIELDS(function, x)
};

template <class Real>
struct CombineOperation {
  Combination function;
  int x, y;
  ELMAN_FIELDS(function, x, y)
};

// x where the condition is above zero, else y.
template <class Real>
struct ChooseOperation {
  int condition, x, y;
  ELMAN_FIELDS(condition, x, y)
};

// Each row of x normalised, each of its heads by itself; gain and bias, which may be null, as wide as a head.
template <class Real>
struct NormOperation {
  bool centred;
  int x;
  int64_t heads;
  const Real *gain, *bias;
  double eps;
  ELMAN_FIELDS(centred, x, heads, gain, bias, eps)
};

// mean + scale t, t drawn from Student's distribution: for `paths` alone.
template <class Real>
struct StudentTOperation {
  int df, mean, scale;
  ELMAN_FIELDS(df, mean, scale)
};

// Columns of x, in any order, any of them often.
template <class Real>
struct GatherOperation {
  int x;
  const int64_t* columns;
  int64_t count;
  ELMAN_FIELDS(x, columns, count)
};

// Columns [first, first + count) of x into columns [to, to + count) of y.
template <class Real>
struct CopyOperation {
  int x;
  int64_t first, count;
  int y;
  int64_t to;
  ELMAN_FIELDS(x, first, count, y, to)
};

// Columns [first, first + count) of x.
template <class Real>
struct CutOperation {
  int x;
  int64_t first, count;
  ELMAN_FIELDS(x, first, count)
};

template <class Real, class Operation>
using Append = int(Program<Real>& program, const Operation& operation);

// Every operation by its type and its name.
// clang-format off
#define ELMAN_OPERATIONS(operation)            \
  operation(ConstantOperation, constant)       \
  operation(LookupOperation, lookup)           \
  operation(LinearOperation, linear)           \
  operation(WindowsOperation, windows)         \
  operation(GatedOperation, gated)             \
  operation(AttendOperation, attend)           \
  operation(ScanOperation, scan)               \
  operation(SelectiveOperation, selective)     \
  operation(BankOperation, bank)               \
  operation(MatrixOperation, matrix)           \
  operation(FilterOperation, filter)           \
  operation(ConvolutionOperation, convolution) \
  operation(LagsOperation, lags)               \
  operation(MeanOperation, mean)               \
  operation(MapOperation, map)                 \
  operation(CombineOperation, combine)         \
  operation(ChooseOperation, choose)           \
  operation(NormOperation, norm)               \
  operation(StudentTOperation, student_t)      \
  operation(GatherOperation, gather)           \
  operation(CopyOperation, copy)               \
  operation(CutOperation, cut)
// clang-format on

}  // namespace elman
