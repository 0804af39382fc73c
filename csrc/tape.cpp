// The instructions of a tape, one after another, each in blocks that stay in the first-level cache: an operand that does not lie
// side by side is brought so first, block by block. A number's bits do not depend on where it lies, and products and sums
// run in one order: those of `linear`, and of one running sum in double.
//
// What is still libm's, whose last bit may differ from one machine to another: expm1, log1p, pow, lgamma, and hypot (of `sign` of
// complex numbers).
#include "tape.h"

#include <algorithm>

#include "angles.h"
#include "buffers.h"
#include "gamma.h"
#include "influence.h"
#include "kernels.h"
#include "math.h"
#include "parallel.h"
#include "simd.h"

namespace elman::ELMAN_NS {

template <class Real>
Linear<Real> linear;

namespace {

using Instruction = Tape::Instruction;
using Operand = Tape::Operand;
using Code = TapeCode;
using Type = TapeType;

constexpr int64_t block = 256;

template <class Real>
struct Complex {
  Real real, imaginary;
  friend Complex operator+(Complex a, Complex b) { return {a.real + b.real, a.imaginary + b.imaginary}; }
  friend Complex operator-(Complex a, Complex b) { return {a.real - b.real, a.imaginary - b.imaginary}; }
  friend Complex operator-(Complex a) { return {-a.real, -a.imaginary}; }
  friend Complex operator*(Complex a, Complex b) {
    return {a.real * b.real - a.imaginary * b.imaginary, a.real * b.imaginary + a.imaginary * b.real};
  }
};

// What is computed at once, and what sums are kept in.
template <class T> struct Of {
  using Packed = T;
  using Sum = T;
};
template <> struct Of<float> {
  using Packed = Vec<float>;
  using Sum = double;
};
template <> struct Of<double> {
  using Packed = Vec<double>;
  using Sum = double;
};
template <> struct Of<Complex<float>> {
  using Packed = Complex<float>;
  using Sum = Complex<double>;
};
template <class T> constexpr bool is_real = std::is_floating_point_v<T>;
template <class T> constexpr bool is_complex = false;
template <class Real> constexpr bool is_complex<Complex<Real>> = true;

struct Run {
  std::vector<char*> places;

  template <class T>
  T* at(const Operand& o) const {
    return reinterpret_cast<T*>(places[size_t(o.place)]) + o.offset;
  }
};

// Elements [begin, begin + n) of an operand, side by side.
template <class T>
void bring(const Instruction& i, const Operand& o, const T* from, int64_t begin, int64_t n, T* to) {
  const int last = int(i.sizes.size()) - 1;
  int64_t at[tape_axes], rest = begin;
  for (int k = last; k >= 0; --k) {
    at[k] = rest % i.sizes[k];
    rest /= i.sizes[k];
    from += at[k] * o.strides[k];
  }
  const int64_t stride = o.strides[last];
  while (true) {
    const int64_t run = std::min(n, i.sizes[last] - at[last]);
    if (stride == 1) std::memcpy(to, from, size_t(run) * sizeof(T));
    else
      for (int64_t c = 0; c < run; ++c) to[c] = from[c * stride];
    to += run;
    if ((n -= run) == 0) return;
    from += run * stride;
    at[last] += run;
    for (int k = last; k > 0 && at[k] == i.sizes[k]; --k) {
      at[k] = 0;
      from += o.strides[k - 1] - i.sizes[k] * o.strides[k];
      ++at[k - 1];
    }
  }
}

bool is_number(const Instruction& i, const Operand& o) {
  for (size_t k = 0; k < i.sizes.size(); ++k)
    if (o.strides[k] != 0 && i.sizes[k] > 1) return false;
  return true;
}

// f(what is read of each operand, where to write, how many) for blocks of elements.
template <class T, class Out, int operands, class F>
void blocks(const Run& run, const Instruction& i, const F& f) {
  alignas(64) T own[operands][block];
  const T* from[operands];
  bool number[operands];
  for (int k = 0; k < operands; ++k) {
    const Operand& o = i.operands[size_t(k) + 1];
    number[k] = i.count > 0 && is_number(i, o);
    from[k] = own[k];
    if (number[k]) std::fill_n(own[k], std::min(block, i.count), *run.at<const T>(o));
  }
  Out* to = run.at<Out>(i.operands[0]);
  for (int64_t begin = 0; begin < i.count; begin += block) {
    const int64_t n = std::min(block, i.count - begin);
    for (int k = 0; k < operands; ++k) {
      if (number[k]) continue;
      const Operand& o = i.operands[size_t(k) + 1];
      const T* base = run.at<const T>(o);
      if (o.plain) from[k] = base + begin;
      else bring(i, o, base, begin, n, own[k]), from[k] = own[k];
    }
    f(from, to + begin, n);
  }
}

// f of one number after another, as packed as they are computed.
template <class T, int operands, class F>
void map(const Run& run, const Instruction& i, const F& f) {
  using V = typename Of<T>::Packed;
  constexpr int64_t L = sizeof(V) / sizeof(T);
  const auto call = [&](const T* const* from, int64_t c) {
    if constexpr (operands == 1) return V(f(load<V>(from[0] + c)));
    else if constexpr (operands == 2) return V(f(load<V>(from[0] + c), load<V>(from[1] + c)));
    else return V(f(load<V>(from[0] + c), load<V>(from[1] + c), load<V>(from[2] + c)));
  };
  blocks<T, T, operands>(run, i, [&](const T* const* from, T* to, int64_t n) {
    int64_t c = 0;
    for (; c + L <= n; c += L) store(to + c, call(from, c));
    if (c == n) return;
    T tail[operands][L] = {};
    const T* rest[operands];
    for (int k = 0; k < operands; ++k) {
      std::memcpy(tail[k], from[k] + c, size_t(n - c) * sizeof(T));
      rest[k] = tail[k];
    }
    const V v = call(rest, 0);
    std::memcpy(to + c, &v, size_t(n - c) * sizeof(T));
  });
}

// f of numbers one by one: functions that have no vectors, comparisons.
template <class T, class Out, int operands, class F>
void each(const Run& run, const Instruction& i, const F& f) {
  blocks<T, Out, operands>(run, i, [&](const T* const* from, Out* to, int64_t n) {
    for (int64_t c = 0; c < n; ++c) {
      if constexpr (operands == 1) to[c] = Out(f(from[0][c]));
      else to[c] = Out(f(from[0][c], from[1][c]));
    }
  });
}

double log_gamma(double x) {
#if defined(__GLIBC__) || defined(__APPLE__)
  int sign;
  return lgamma_r(x, &sign);  // std::lgamma writes the sign where all threads share it
#else
  return std::lgamma(x);
#endif
}

template <class T>
void copy(const Run& run, const Instruction& i) {
  const Operand &to = i.operands[0], &from = i.operands[1];
  if (to.plain)
    return blocks<T, T, 1>(run, i, [](const T* const* x, T* y, int64_t n) { std::memcpy(y, x[0], size_t(n) * sizeof(T)); });
  // Into a part of an array: what one run of the last axis has, after another.
  const int last = int(i.sizes.size()) - 1;
  const int64_t width = i.sizes[last];
  T own[block];
  for (int64_t begin = 0; begin < i.count;) {
    const int64_t n = std::min(block, width - begin % width);
    bring(i, from, run.at<const T>(from), begin, n, own);
    T* y = run.at<T>(to);
    for (int64_t k = last, rest = begin; k >= 0; --k) {
      y += rest % i.sizes[k] * to.strides[k];
      rest /= i.sizes[k];
    }
    for (int64_t c = 0; c < n; ++c) y[c * to.strides[last]] = own[c];
    begin += n;
  }
}

template <class T>
void where(const Run& run, const Instruction& i) {
  const Operand &condition = i.operands[1], &left = i.operands[2], &right = i.operands[3];
  uint8_t which[block];
  T x[block], y[block];
  T* to = run.at<T>(i.operands[0]);
  for (int64_t begin = 0; begin < i.count; begin += block, to += block) {
    const int64_t n = std::min(block, i.count - begin);
    bring(i, condition, run.at<const uint8_t>(condition), begin, n, which);
    bring(i, left, run.at<const T>(left), begin, n, x);
    bring(i, right, run.at<const T>(right), begin, n, y);
    for (int64_t c = 0; c < n; ++c) to[c] = which[c] ? x[c] : y[c];
  }
}

template <class From, class To>
void cast(const Run& run, const Instruction& i) {
  blocks<From, To, 1>(run, i, [](const From* const* from, To* to, int64_t n) {
    for (int64_t c = 0; c < n; ++c) {
      if constexpr (is_complex<From> && is_complex<To>)
        to[c] = {decltype(to->real)(from[0][c].real), decltype(to->real)(from[0][c].imaginary)};
      else if constexpr (is_complex<To>) to[c] = {decltype(to->real)(from[0][c]), 0};
      else if constexpr (!is_complex<From>) to[c] = To(from[0][c]);
    }
  });
}

template <class T>
typename Of<T>::Sum widened(T x) {
  if constexpr (is_complex<T>) return {x.real, x.imaginary};
  else return x;
}

// combine(sum, x) over the last axes, for each element of the others: eight sums side by side, then these.
template <class T, class F>
void reduce(const Run& run, const Instruction& i, typename Of<T>::Sum start, const F& combine) {
  const Operand& o = i.operands[1];
  const T* from = run.at<const T>(o);
  T* to = run.at<T>(i.operands[0]);
  int64_t width = 1;
  for (size_t k = i.sizes.size() - size_t(i.more[0]); k < i.sizes.size(); ++k) width *= i.sizes[k];
  T own[block];
  for (int64_t row = 0; row * width < i.count; ++row) {
    typename Of<T>::Sum sums[8];
    std::fill_n(sums, 8, start);
    for (int64_t begin = 0; begin < width; begin += block) {
      const int64_t n = std::min(block, width - begin);
      bring(i, o, from, row * width + begin, n, own);
      int64_t c = 0;
      for (; c + 8 <= n; c += 8)
        for (int l = 0; l < 8; ++l) sums[l] = combine(sums[l], widened(own[c + l]));
      for (; c < n; ++c) sums[c % 8] = combine(sums[c % 8], widened(own[c]));
    }
    auto sum = sums[0];
    for (int l = 1; l < 8; ++l) sum = combine(sum, sums[l]);
    if constexpr (is_complex<T>) to[row] = {decltype(to->real)(sum.real), decltype(to->real)(sum.imaginary)};
    else to[row] = T(sum);
  }
}

template <class T>
bool choose(const Run& run, const Instruction& i) {
  const int64_t rows = i.more[0], n = i.more[1], m = i.more[2], columns = i.more[3];
  T* y = run.at<T>(i.operands[0]);
  const T* x = run.at<const T>(i.operands[1]);
  const int64_t* places = run.at<const int64_t>(i.operands[2]);
  const bool shared = i.code == Code::take;  // by all rows and columns
  if (i.code == Code::scatter) std::fill_n(y, rows * n * columns, T{});
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t j = 0; j < m; ++j)
      for (int64_t c = 0; c < columns; ++c) {
        int64_t place = shared ? places[j] : places[(row * m + j) * columns + c];
        if (place < 0 && i.more[4]) place += n;
        if (place < 0 || place >= n) return false;
        const int64_t whole = (row * n + place) * columns + c, part = (row * m + j) * columns + c;
        if (i.code == Code::scatter) y[whole] = y[whole] + x[part];
        else y[part] = x[whole];
      }
  return true;
}

template <class Real>
void multiply(const Run& run, const Instruction& i, int threads) {
  const int64_t M = i.more[1], N = i.more[2], K = i.more[3];
  const Real* b = i.operands.size() > 3 ? run.at<const Real>(i.operands[3]) : nullptr;
  Real* y = run.at<Real>(i.operands[0]);
  const Real *x = run.at<const Real>(i.operands[1]), *w = run.at<const Real>(i.operands[2]);
  for (int64_t k = 0; k < i.more[0]; ++k) linear<Real>(M, N, K, x + k * M * K, w + k * N * K, b, y + k * M * N, threads);
}

template <class Real>
void trace(const Run& run, const Instruction& i, int threads) {
  const auto at = [&](size_t k) { return run.at<Real>(i.operands[k]); };
  const Real* right = i.more[4] ? at(6) : nullptr;
  Influence<Real>{i.more[0], i.more[1], i.more[2], i.more[3], at(0), at(1), at(2), at(3), at(4), at(5), right}.run(threads);
}

// Of numbers that can be compared.
template <class T>
bool compared(const Run& run, const Instruction& i) {
  switch (i.code) {
    case Code::eq: return each<T, uint8_t, 2>(run, i, [](T a, T b) { return a == b; }), true;
    case Code::ne: return each<T, uint8_t, 2>(run, i, [](T a, T b) { return a != b; }), true;
    case Code::lt: return each<T, uint8_t, 2>(run, i, [](T a, T b) { return a < b; }), true;
    case Code::le: return each<T, uint8_t, 2>(run, i, [](T a, T b) { return a <= b; }), true;
    case Code::gt: return each<T, uint8_t, 2>(run, i, [](T a, T b) { return a > b; }), true;
    case Code::ge: return each<T, uint8_t, 2>(run, i, [](T a, T b) { return a >= b; }), true;
    case Code::largest: {  // NaN stays, as in Torch
      using Sum = typename Of<T>::Sum;
      const Sum least =
          std::numeric_limits<Sum>::has_infinity ? -std::numeric_limits<Sum>::infinity() : std::numeric_limits<Sum>::min();
      return reduce<T>(run, i, least, [](Sum a, Sum b) { return a > b || a != a ? a : b; }), true;
    }
    case Code::isnan: return each<T, uint8_t, 1>(run, i, [](T a) { return a != a; }), true;
    // Of whole numbers; those of others are above.
    case Code::maximum: return each<T, T, 2>(run, i, [](T a, T b) { return a > b ? a : b; }), true;
    case Code::minimum: return each<T, T, 2>(run, i, [](T a, T b) { return a < b ? a : b; }), true;
    default: return false;
  }
}

template <class T>
bool function(const Run& run, const Instruction& i) {
  using V = Vec<T>;
  switch (i.code) {
    case Code::exp: return map<T, 1>(run, i, [](V x) { return exponential<T>(x); }), true;
    case Code::log: return map<T, 1>(run, i, [](V x) { return logarithm<T>(x); }), true;
    case Code::sigmoid: return map<T, 1>(run, i, [](V x) { return logistic<T>(x); }), true;
    case Code::tanh: return map<T, 1>(run, i, [](V x) { return hyperbolic_tangent<T>(x); }), true;
    case Code::softplus: return map<T, 1>(run, i, [](V x) { return log_one_plus_exp<T>(x); }), true;
    case Code::sin: return map<T, 1>(run, i, [](V x) { return sine<T>(x); }), true;
    case Code::cos: return map<T, 1>(run, i, [](V x) { return cosine<T>(x); }), true;
    case Code::sqrt: return map<T, 1>(run, i, [](V x) { return square_root<T>(x); }), true;
    case Code::relu: return map<T, 1>(run, i, [](V x) { return x < T(0) ? V{} : x; }), true;
    case Code::abs: return map<T, 1>(run, i, [](V x) { return copy_sign<T>(x, V{}); }), true;
    case Code::div: return map<T, 2>(run, i, [](V a, V b) { return a / b; }), true;
    case Code::maximum: return map<T, 2>(run, i, [](V a, V b) { return (a > b) | (a != a) ? a : b; }), true;
    case Code::minimum: return map<T, 2>(run, i, [](V a, V b) { return (a < b) | (a != a) ? a : b; }), true;
    case Code::expm1: return each<T, T, 1>(run, i, [](T x) { return std::expm1(x); }), true;
    case Code::log1p: return each<T, T, 1>(run, i, [](T x) { return std::log1p(x); }), true;
    case Code::sign: return each<T, T, 1>(run, i, [](T x) { return T((x > 0) - (x < 0)); }), true;
    case Code::lgamma: return each<T, T, 1>(run, i, [](T x) { return log_gamma(x); }), true;
    case Code::digamma: return each<T, T, 1>(run, i, [](T x) { return digamma(x); }), true;
    case Code::pow: return each<T, T, 2>(run, i, [](T a, T b) { return std::pow(a, b); }), true;
    default: return compared<T>(run, i);
  }
}

// e^z, and e^z - 1 without the digits that a small z would lose.
template <class Real>
Complex<Real> complex_exponential(Complex<Real> z) {
  const Real size = exponential<Real>(splat<Real>(z.real))[0];
  if (size == 0) return {};
  const Vec<Real> angle = splat<Real>(z.imaginary);
  return {size * cosine<Real>(angle)[0], z.imaginary == 0 ? z.imaginary : size * sine<Real>(angle)[0]};
}
template <class Real>
Complex<Real> exponential_less_one(Complex<Real> z) {
  const Real half = sine<Real>(splat<Real>(z.imaginary / 2))[0];
  return {std::expm1(z.real) * cosine<Real>(splat<Real>(z.imaginary))[0] - 2 * half * half, complex_exponential(z).imaginary};
}
template <class Real>
Complex<Real> quotient(Complex<Real> a, Complex<Real> b) {
  const Real square = b.real * b.real + b.imaginary * b.imaginary;
  const Complex<Real> product = a * Complex<Real>{b.real, -b.imaginary};
  return {product.real / square, product.imaginary / square};
}
// z / |z|, 0 at 0.
template <class Real>
Complex<Real> direction(Complex<Real> z) {
  const Real size = std::hypot(z.real, z.imaginary);
  return size == 0 ? Complex<Real>{} : Complex<Real>{z.real / size, z.imaginary / size};
}

template <class T>
bool complex_function(const Run& run, const Instruction& i) {
  switch (i.code) {
    case Code::conj: return map<T, 1>(run, i, [](T z) { return T{z.real, -z.imaginary}; }), true;
    case Code::exp: return map<T, 1>(run, i, [](T z) { return complex_exponential(z); }), true;
    case Code::expm1: return map<T, 1>(run, i, [](T z) { return exponential_less_one(z); }), true;
    case Code::sign: return map<T, 1>(run, i, [](T z) { return direction(z); }), true;
    case Code::div: return map<T, 2>(run, i, [](T a, T b) { return quotient(a, b); }), true;
    default: return false;
  }
}

template <class T>
bool step(const Run& run, const Instruction& i, int threads) {
  using V = typename Of<T>::Packed;
  if constexpr (is_real<T>) {
    if (i.code == Code::linear) return multiply<T>(run, i, threads), true;
    if (i.code == Code::trace) return trace<T>(run, i, threads), true;
  }
  switch (i.code) {
    case Code::copy: return copy<T>(run, i), true;
    case Code::where: return where<T>(run, i), true;
    case Code::take:
    case Code::gather:
    case Code::scatter: return choose<T>(run, i);
    case Code::neg: return map<T, 1>(run, i, [](V x) { return -x; }), true;
    case Code::add: return map<T, 2>(run, i, [](V a, V b) { return a + b; }), true;
    case Code::sub: return map<T, 2>(run, i, [](V a, V b) { return a - b; }), true;
    case Code::mul: return map<T, 2>(run, i, [](V a, V b) { return a * b; }), true;
    case Code::sum: {
      using Sum = typename Of<T>::Sum;
      return reduce<T>(run, i, Sum{}, [](Sum a, Sum b) { return a + b; }), true;
    }
    default: break;
  }
  if constexpr (is_complex<T>) return complex_function<T>(run, i);
  else if constexpr (is_real<T>) return function<T>(run, i);
  else return compared<T>(run, i);
}

// Booleans, which are not added.
template <>
bool step<uint8_t>(const Run& run, const Instruction& i, int) {
  using B = uint8_t;
  switch (i.code) {
    case Code::copy: return copy<B>(run, i), true;
    case Code::where: return where<B>(run, i), true;
    case Code::take:
    case Code::gather: return choose<B>(run, i);
    case Code::no: return each<B, B, 1>(run, i, [](B a) { return !a; }), true;
    case Code::both: return each<B, B, 2>(run, i, [](B a, B b) { return a && b; }), true;
    case Code::either: return each<B, B, 2>(run, i, [](B a, B b) { return a || b; }), true;
    default: return compared<B>(run, i);
  }
}

template <class From>
bool cast_from(const Run& run, const Instruction& i) {
  switch (i.type) {
    case Type::f32: return cast<From, float>(run, i), true;
    case Type::f64: return cast<From, double>(run, i), true;
    case Type::c64: return cast<From, Complex<float>>(run, i), true;
    case Type::c128: return cast<From, Complex<double>>(run, i), true;
    case Type::i64: return cast<From, int64_t>(run, i), true;
    case Type::u8: return false;
  }
  return false;
}

bool step(const Run& run, const Instruction& i, int threads) {
  const bool casts = i.code == Code::cast;
  switch (casts ? Type(i.more[0]) : i.type) {
    case Type::f32: return casts ? cast_from<float>(run, i) : step<float>(run, i, threads);
    case Type::f64: return casts ? cast_from<double>(run, i) : step<double>(run, i, threads);
    case Type::c64: return casts ? cast_from<Complex<float>>(run, i) : step<Complex<float>>(run, i, threads);
    case Type::c128: return casts ? cast_from<Complex<double>>(run, i) : step<Complex<double>>(run, i, threads);
    case Type::i64: return casts ? cast_from<int64_t>(run, i) : step<int64_t>(run, i, threads);
    case Type::u8: return casts ? cast_from<uint8_t>(run, i) : step<uint8_t>(run, i, threads);
  }
  return false;
}

}  // namespace

bool run_tape(const Tape& tape, char* const* given, char* const* made, int threads) {
  const auto memory = allocate<char>(tape.memory);
  Run run;
  run.places = {memory.get(), const_cast<char*>(tape.constants.data())};
  run.places.insert(run.places.end(), given, given + tape.given);
  run.places.insert(run.places.end(), made, made + tape.made);
  for (const Instruction& i : tape.instructions)
    if (!step(run, i, threads)) return false;
  return true;
}

}  // namespace elman::ELMAN_NS
