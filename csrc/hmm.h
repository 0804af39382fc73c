// What the filter of a hidden Markov model, its gradient and its most probable path share: products of a row with a packed
// matrix, and what the filter keeps in between.
#pragma once

#include <limits>

#include "kernels.h"
#include "math.h"
#include "parallel.h"
#include "product.h"

namespace elman::ELMAN_NS {

constexpr int64_t chunk = 64;  // steps of the filter whose exponentials are taken together, before the recurrence needs them
constexpr int64_t splits = 4;  // rows of a packed matrix are padded to a multiple of it

template <class Real> constexpr Real infinity = std::numeric_limits<Real>::infinity();

// Vectors per row: whole tiles of 8, 4, 2 or 1.
template <class Real> struct Width {
  int64_t K, tile, padded, rows;
  explicit Width(int64_t K) : K(K) {
    const int64_t n = (K + lanes<Real> - 1) / lanes<Real>;
    tile = n >= 8 ? 8 : n >= 3 ? 4 : n >= 2 ? 2 : 1;  // 3 too: what fits in 4 registers is packed as 4
    padded = (n + tile - 1) / tile * tile * lanes<Real>;
    rows = (K + splits - 1) / splits * splits;
  }
};

// A step waits for the one before, which takes as long as some hundred multiply-adds.
template <class Inputs>
int threads_for(const Inputs& in, int threads) {
  return threads_for(in.B * in.T * std::max<int64_t>(in.K * in.K, 512), WorthAThread::multiply_adds, threads);
}

// Threads that divide the columns of the matrix within a row, if it is the only one: a step must be worth a meeting.
template <class Inputs, class Real>
int threads_within(const Inputs& in, Width<Real> w, int threads) {
  const bool large = w.rows * w.padded * sizeof(Real) >= size_t(1) << 18;
  return in.B == 1 && large ? threads_for(in, threads) : 1;
}

// [tile of columns][row][columns in the tile], `fill` outside: to(i, j) = a[i * by_row + j * by_column].
template <class Real>
Buffer<Real> pack(const Real* a, int64_t by_row, int64_t by_column, Width<Real> w, Real fill) {
  Buffer<Real> to = allocate<Real>(w.rows * w.padded);
  const int64_t across = w.tile * lanes<Real>;
  Real* at = to.get();
  for (int64_t j0 = 0; j0 < w.padded; j0 += across)
    for (int64_t i = 0; i < w.rows; ++i)
      for (int64_t j = j0; j < j0 + across; ++j) *at++ = i < w.K && j < w.K ? a[i * by_row + j * by_column] : fill;
  return to;
}

// The ordinary one, in which a product is a step of the filter.
struct Times {
  template <class V> static ELMAN_INLINE V add(V sum, V a, V x) { return fma(a, x, sum); }
  template <class V> static ELMAN_INLINE V join(V a, V b) { return a + b; }
  template <class Real> static constexpr Real zero = Real(0);
};

// The algebra of max and +, in which a product is a step of the most probable path.
struct Best {
  template <class V> static ELMAN_INLINE V add(V top, V a, V x) { return join(a + x, top); }
  template <class V> static ELMAN_INLINE V join(V a, V b) { return a > b ? a : b; }
  template <class Real> static constexpr Real zero = -infinity<Real>;
};

// y_j = sum_i x_i a_ij for one tile of columns; S interleaved partial sums hide the latency where there are few columns.
template <class Algebra, int C, int S, class Real>
ELMAN_INLINE void product_tile(const Real* __restrict a, const Real* __restrict x, int64_t rows, Vec<Real> (&y)[C]) {
  Vec<Real> sum[S][C];
  for (int s = 0; s < S; ++s)
    for (int n = 0; n < C; ++n) sum[s][n] = splat<Real>(Algebra::template zero<Real>);
  for (int64_t i = 0; i < rows; i += S) {
#pragma GCC unroll 8
    for (int s = 0; s < S; ++s) {
      const Vec<Real> xi = splat<Real>(x[i + s]);
#pragma GCC unroll 8
      for (int n = 0; n < C; ++n) sum[s][n] = Algebra::add(sum[s][n], load<Vec<Real>>(a + n * lanes<Real>), xi);
      a += C * lanes<Real>;
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < C; ++n) {
    for (int s = 1; s < S; ++s) sum[0][n] = Algebra::join(sum[0][n], sum[s][n]);
    y[n] = sum[0][n];
  }
}

// A range of columns, of whole tiles.
struct Columns {
  int64_t first, end;
};

template <class Real>
Columns columns(Width<Real> w, const Member& member) {
  const int64_t across = w.tile * lanes<Real>, tiles = w.padded / across;
  return {tiles * member.thread / member.threads * across, tiles * (member.thread + 1) / member.threads * across};
}

template <class Algebra, int C, int S, class Real>
void product_tiles(const Real* a, const Real* x, Width<Real> w, Real* y, Columns of) {
  for (int64_t j = of.first; j < of.end; j += C * lanes<Real>) {
    Vec<Real> sum[C];
    product_tile<Algebra, C, S>(a + j * w.rows, x, w.rows, sum);
#pragma GCC unroll 8
    for (int n = 0; n < C; ++n) store(y + j + n * lanes<Real>, sum[n]);
  }
}

template <class Algebra, class Real>
ELMAN_INLINE void product(const Real* a, const Real* x, Width<Real> w, Real* y, Columns of) {
  if (w.tile == 8) product_tiles<Algebra, 8, 1>(a, x, w, y, of);
  else if (w.tile == 4) product_tiles<Algebra, 4, 2>(a, x, w, y, of);
  else if (w.tile == 2) product_tiles<Algebra, 2, 4>(a, x, w, y, of);
  else product_tiles<Algebra, 1, 4>(a, x, w, y, of);
}

template <class Algebra, class Real>
ELMAN_INLINE void product(const Real* a, const Real* x, Width<Real> w, Real* y) {
  product<Algebra>(a, x, w, y, Columns{0, w.padded});
}

// v[i] in every lane.
template <int i, class V, int... I>
ELMAN_INLINE V spread(V v, std::integer_sequence<int, I...>) {
  return shuffle<(I * 0 + i)...>(v);
}

// The same product for at most R states in C registers, R rows of a: x never goes through memory, which takes longer than the
// sums. Partial sums are added in pairs.
template <int C, int R, class Real, int... I>
ELMAN_INLINE void product_in_registers(const Vec<Real> (&a)[R * C], const Vec<Real> (&x)[C], Vec<Real> (&y)[C],
                                       std::integer_sequence<int, I...>) {
  constexpr int L = lanes<Real>, S = 4;
  Vec<Real> sum[S][C];
  const auto add = [&](auto row) {
    constexpr int i = decltype(row)::value;
    const Vec<Real> xi = spread<i % L>(x[i / L], std::make_integer_sequence<int, L>{});
#pragma GCC unroll 2
    for (int n = 0; n < C; ++n) sum[i % S][n] = i < S ? a[i * C + n] * xi : fma(a[i * C + n], xi, sum[i % S][n]);
  };
  (add(std::integral_constant<int, I>{}), ...);
#pragma GCC unroll 2
  for (int n = 0; n < C; ++n) y[n] = (sum[0][n] + sum[1][n]) + (sum[2][n] + sum[3][n]);
}

// A packed matrix of at most R states in C vectors, in registers; zero outside.
template <int C, int R, class Real>
struct Matrix {
  Vec<Real> a[R * C];
  Matrix(const Real* packed, Width<Real> w) {
    for (int i = 0; i < R * C; ++i) a[i] = i < w.rows * C ? load<Vec<Real>>(packed + i * lanes<Real>) : Vec<Real>{};
  }
  ELMAN_INLINE void times(const Vec<Real> (&x)[C], Vec<Real> (&y)[C]) const {
    product_in_registers<C, R, Real>(a, x, y, std::make_integer_sequence<int, R>{});
  }
};

// f(vectors, rows) for the states that Matrix has room for; false if there are too many.
template <class Real, class F>
bool in_registers(Width<Real> w, const F& f) {
  constexpr int L = lanes<Real>;
  using std::integral_constant;
  if constexpr (L >= 4)
    if (w.padded == L && w.K <= 4) return f(integral_constant<int, 1>{}, integral_constant<int, 4>{}), true;
  if constexpr (L >= 8)
    if (w.padded == L && w.K <= 8) return f(integral_constant<int, 1>{}, integral_constant<int, 8>{}), true;
  if constexpr (L == 4)
    if (w.padded == 2 * L) return f(integral_constant<int, 2>{}, integral_constant<int, 8>{}), true;
  return false;
}

// The same for more of them: f(vectors, accumulators) for few, f(0, 1) for any number.
template <class Real, class F>
void in_vectors(Width<Real> w, const F& f) {
  using std::integral_constant;
  if (w.padded == lanes<Real>) f(integral_constant<int, 1>{}, integral_constant<int, 4>{});
  else if (w.padded == 2 * lanes<Real>) f(integral_constant<int, 2>{}, integral_constant<int, 4>{});
  else if (w.padded == 4 * lanes<Real>) f(integral_constant<int, 4>{}, integral_constant<int, 2>{});
  else f(integral_constant<int, 0>{}, integral_constant<int, 1>{});
}

template <class Real>
ELMAN_INLINE Real largest_lane(Vec<Real> v) {
  Real r = v[0];
#pragma GCC unroll 16
  for (int i = 1; i < lanes<Real>; ++i) r = v[i] > r ? v[i] : r;
  return r;
}

template <class Real>
ELMAN_INLINE Real largest(const Real* x, int64_t padded) {
  Vec<Real> top = load<Vec<Real>>(x);
  for (int64_t k = lanes<Real>; k < padded; k += lanes<Real>) top = Best::join(load<Vec<Real>>(x + k), top);
  return largest_lane<Real>(top);
}

// One row of numbers, copied to a padded buffer.
template <class Real>
ELMAN_INLINE void read(const Real* from, int64_t K, Real* to, int64_t padded, Real fill) {
  int64_t k = 0;
  for (; k + lanes<Real> <= K; k += lanes<Real>) store(to + k, load<Vec<Real>>(from + k));
  for (; k < padded; ++k) to[k] = k < K ? from[k] : fill;
}

// e^(x - m), 1 at most.
template <class Real>
ELMAN_INLINE Vec<Real> relative(Vec<Real> x, Real m) {
  const Vec<Real> d = x - m;
  return decay<Real>(d > Real(0) ? Vec<Real>{} : d);
}

// Rows of K numbers, copied to rows of `padded`. What is read a vector at a time soon after it was written a number at a time
// waits for the memory: so whole chunks are copied, before anything is read. A row of less than a vector is copied by a whole
// one, which has the numbers of the next row in it, as long as there are any.
template <class Real>
void widen(const Real* from, int64_t count, Width<Real> w, Real* to, Real fill) {
  constexpr int64_t L = lanes<Real>;
  int64_t t = 0;
  if (w.K < L) {
    Vec<Real> inside{};
    for (int64_t k = 0; k < w.K; ++k) inside[k] = 1;
    for (; t * w.K + L <= count * w.K; ++t)
      store(to + t * L, Vec<Real>(inside > Real(0) ? load<Vec<Real>>(from + t * w.K) : splat<Real>(fill)));
  }
  for (; t < count; ++t) read(from + t * w.K, w.K, to + t * w.padded, w.padded, fill);
}

// The same back: what is written of the next row is written over by it.
template <class Real>
void narrow(const Real* from, int64_t count, Width<Real> w, Real* to) {
  constexpr int64_t L = lanes<Real>;
  if (w.K == w.padded) {
    std::memcpy(to, from, count * w.K * sizeof(Real));
    return;
  }
  int64_t t = 0;
  if (w.K < L)
    for (; t * w.K + L <= count * w.K; ++t) store(to + t * w.K, load<Vec<Real>>(from + t * L));
  for (; t < count; ++t)
    for (int64_t k = 0; k < w.K; ++k) to[t * w.K + k] = from[t * w.padded + k];
}

// e^(x - m[t]) of rows x (count, K), to rows of `padded`, zero outside. Rows of less than a vector are done side by side, in
// `room` (count, K) and a vector more.
template <class Real>
void relatives(const Real* x, const Real* m, int64_t count, Width<Real> w, Real* l, Real* room) {
  constexpr int64_t L = lanes<Real>;
  if (w.K < L) {
    for (int64_t t = 0, i = 0; t < count; ++t)
      for (int64_t k = 0; k < w.K; ++k, ++i) room[i] = x[i] - m[t];
    for (int64_t i = count * w.K; i % L; ++i) room[i] = 0;
    for (int64_t i = 0; i < count * w.K; i += L) store(room + i, relative<Real>(load<Vec<Real>>(room + i), Real(0)));
    return widen(room, count, w, l, Real(0));
  }
  widen(x, count, w, l, -infinity<Real>);
  for (int64_t t = 0; t < count; ++t, l += w.padded)
    for (int64_t k = 0; k < w.padded; k += L) store(l + k, relative<Real>(load<Vec<Real>>(l + k), m[t]));
}

// The likelihoods of `count` steps, each relative to its best: l (count, padded), m (count). `room` is as large as l.
template <class Real>
void likelihoods(const Real* x, int64_t count, Width<Real> w, Real* l, Real* m, Real* room) {
  for (int64_t t = 0; t < count; ++t) {
    Real top = -infinity<Real>;
    int64_t k = 0;
    if (w.K >= lanes<Real>) {
      const int64_t whole = w.K / lanes<Real> * lanes<Real>;
      top = largest(x + t * w.K, whole), k = whole;
    }
    for (; k < w.K; ++k) top = x[t * w.K + k] > top ? x[t * w.K + k] : top;
    m[t] = top == -infinity<Real> ? Real(0) : top;  // -inf minus -inf would be NaN
  }
  relatives(x, m, count, w, l, room);
}

// What a thread keeps of one row: l, p and b of a chunk of steps (chunk, padded). `outside` is 1 past K and 0 before.
template <class Real>
struct Scratch {
  Buffer<Real> l, p, b, m, s, u, outside;
  Scratch(Width<Real> w, int64_t steps, bool back)
      : l(allocate<Real>(std::min(chunk, steps) * w.padded)),
        p(allocate<Real>(std::min(chunk, steps) * w.padded)),
        b(allocate<Real>(back ? std::min(chunk, steps) * w.padded : 0)),
        m(allocate<Real>(chunk)),
        s(allocate<Real>(w.padded + w.rows)),
        u(allocate<Real>(w.padded + w.rows)),
        outside(allocate<Real>(w.padded)) {
    for (Real* p : {s.get(), u.get()}) std::fill(p, p + w.padded + w.rows, Real(0));
    for (int64_t k = 0; k < w.padded; ++k) outside[k] = k < w.K ? Real(0) : Real(1);
  }
};

// What s[t] was: the prediction after step t - 1, or where the sequence began.
template <class Real>
ELMAN_INLINE const Real* before(const Real* p, const Real* start, const Real* state, const bool* reset, int64_t t, int64_t K) {
  return reset[t] ? start : t > 0 ? p + (t - 1) * K : state;
}

}  // namespace elman::ELMAN_NS
