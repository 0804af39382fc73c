// The scan of matrix states, step by step: for each head S = diag(a) S' + k v^T, with a correction of rank one or none
// (matrix.h), and y = S^T q.
//
// A lane is a column of S, and columns do not see each other. A task is a few columns of one head of one row: its piece of S,
// [key][column], stays in the first-level cache while time goes on. Key i is added to accumulator i % 4 of a sum over keys, and
// the four are added up in pairs, whatever columns stand beside: so cuts in time, batches and threads do not change a bit.
// (In chunks, as GPUs do it, there would be as many instructions and a system of equations, and cuts would change the bits.)
#include "matrix.h"

#include "steps.h"

namespace elman::ELMAN_NS {
namespace {

constexpr int accumulators = 4;  // of a sum over keys
constexpr int vectors = 2;       // columns of a task: these times accumulators are the sums that are open at once

// What a step reads of its head, each (K).
template <class Real>
struct StepKeys {
  const Real *q, *k, *a, *alpha, *beta;
};

// f(i, accumulator) for every key, the number of the accumulator known to the compiler.
template <class F>
ELMAN_INLINE void each_key(int64_t K, const F& f) {
  int64_t i = 0;
  for (; i + accumulators <= K; i += accumulators)
#pragma GCC unroll 4
    for (int p = 0; p < accumulators; ++p) f(i + p, p);
#pragma GCC unroll 4
  for (int p = 0; p < accumulators - 1; ++p)
    if (i + p < K) f(i + p, p);
}

template <int N, class V>
ELMAN_INLINE void add_up(const V (&parts)[accumulators][N], V (&sum)[N]) {
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) sum[n] = (parts[0][n] + parts[1][n]) + (parts[2][n] + parts[3][n]);
}

// One step of N vectors of columns, from S in `from` to S in `to`, which may be the same: y of v, and m, where there is a
// correction. Keys are `from_key` and `to_key` apart.
template <Correction correction, int N, class Real>
ELMAN_INLINE void matrix_step(int64_t K, const StepKeys<Real>& x, Real b, const Real* from, int64_t from_key, Real* to,
                              int64_t to_key, const Vec<Real> (&v)[N], Vec<Real> (&y)[N], Vec<Real> (&m)[N]) {
  using V = Vec<Real>;
  constexpr int L = lanes<Real>;
  V d[N];
  for (int n = 0; n < N; ++n) d[n] = v[n];
  if constexpr (correction != Correction::none) {
    V parts[accumulators][N] = {};
    each_key(K, [&](int64_t i, int p) {
      const V alpha = splat(x.alpha[i]);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) parts[p][n] = fma(alpha, load<V>(from + i * from_key + n * L), parts[p][n]);
    });
    add_up(parts, m);
  }
  if constexpr (correction == Correction::delta)
    for (int n = 0; n < N; ++n) d[n] = b * (v[n] - m[n]);
  V parts[accumulators][N] = {};
  each_key(K, [&](int64_t i, int p) {
    const V a = splat(x.a[i]), k = splat(x.k[i]), q = splat(x.q[i]);
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      V s = a * load<V>(from + i * from_key + n * L);
      if constexpr (correction == Correction::general) s = fma(splat(x.beta[i]), m[n], s);
      s = fma(k, d[n], s);
      store(to + i * to_key + n * L, s);
      parts[p][n] = fma(q, s, parts[p][n]);
    }
  });
  add_up(parts, y);
}

template <class Real>
ELMAN_INLINE void fetch(const Real* p, int64_t count) {
  for (int64_t i = 0; i < count; i += cache_line / int64_t(sizeof(Real))) __builtin_prefetch(p + i);
}

// At most N vectors of columns of the state of one head of one row.
template <Correction correction, int N, class Real>
class Columns {
  using V = Vec<Real>;
  static constexpr int L = lanes<Real>;
  static constexpr int64_t room = N * L;
  static constexpr int64_t ahead = 2;  // steps whose inputs are asked for: they lie too far apart for the processor to guess

  const MatrixInputs<Real>& in;
  const MatrixOutputs<Real>& out;
  const int64_t row, head, first, width, length;
  const bool* reset;
  const HeadSteps<Real> q, k, v, a, b, alpha, beta;
  const Buffer<Real> S, decays, products;  // S: [key][column]; the others: a and a * k of a step, where they are not given

 public:
  Columns(const MatrixInputs<Real>& in, const MatrixOutputs<Real>& out, int64_t row, int64_t head, int64_t first)
      : in(in),
        out(out),
        row(row),
        head(head),
        first(first),
        width(std::min(room, in.V - first)),
        length(in.lengths[row]),
        reset(in.reset + row * in.T),
        q(in.q, row, head, in.H),
        k(in.k, row, head, in.H),
        v(in.v, row, head, in.H),
        a(in.a, row, head, in.H),
        b(in.b, row, head, in.H),
        alpha(in.alpha, row, head, in.H),
        beta(in.beta, row, head, in.H),
        S(allocate<Real>(in.K * room)),
        decays(allocate<Real>(in.K + L)),
        products(allocate<Real>(in.K + L)) {
    if (!in.a.data) fill_decays(Real(1));
  }

  void run() {
    const int64_t state = (row * in.H + head) * in.K * in.V + first;
    // Whole vectors are read where the first step finds them, and written where the last step's belong.
    const bool whole = width == room && length > 0;
    if (!whole) read(in.S0 + state);
    for (int64_t t = 0; t < length; ++t) {
      if (out.saved && t > 0 && t % in.every == 0) write(out.saved + checkpoint(in, row, head, t / in.every) + first);
      if (reset[t]) clear(S.get(), in.K * room);
      const bool begins = whole && t == 0 && !reset[t], ends = whole && t == length - 1;
      step(t, begins ? in.S0 + state : S.get(), begins ? in.V : room, ends ? out.last + state : S.get(), ends ? in.V : room);
    }
    if (!whole) write(out.last + state);
    for (int64_t t = length; t < in.T; ++t) {
      clear(out.y + at(t), width);
      if (out.m) clear(out.m + at(t), width);
    }
  }

 private:
  int64_t at(int64_t t) const { return ((row * in.T + t) * in.H + head) * in.V + first; }

  void read(const Real* from) {
    for (int64_t i = 0; i < in.K; ++i)
      for (int n = 0; n < N; ++n) store(S.get() + i * room + n * L, some(from + i * in.V, n));
  }
  void write(Real* to) const {
    for (int64_t i = 0; i < in.K; ++i)
      for (int n = 0; n < N; ++n) store_some(to + i * in.V + n * L, load<V>(S.get() + i * room + n * L), width - n * L);
  }
  ELMAN_INLINE V some(const Real* from, int n) const { return load_some(from + n * L, width - n * L); }

  void fill_decays(Real a) {
    for (int64_t i = 0; i < in.K; i += L) store(decays.get() + i, splat(a));
  }

  // a and alpha as a step takes them, one for each key.
  StepKeys<Real> keys(int64_t t) {
    const Real* decay = a.at(t);
    if (in.a.width == 1 && decay) fill_decays(*decay);
    if (!decay || in.a.width == 1) decay = decays.get();
    const Real* read = alpha.at(t);
    if constexpr (correction == Correction::delta) {
      read = products.get();
      for (int64_t i = 0; i < in.K; i += L)
        store(products.get() + i, V(load_some(decay + i, in.K - i) * load_some(k.at(t) + i, in.K - i)));
    }
    return {q.at(t), k.at(t), decay, read, beta.at(t)};
  }

  ELMAN_INLINE void step(int64_t t, const Real* from, int64_t from_key, Real* to, int64_t to_key) {
    if (t + ahead < length) {
      fetch(q.at(t + ahead), in.K);
      fetch(k.at(t + ahead), in.K);
      fetch(v.at(t + ahead) + first, width);
      if (in.a.width > 1) fetch(a.at(t + ahead), in.K);
      if constexpr (correction == Correction::general) fetch(alpha.at(t + ahead), in.K), fetch(beta.at(t + ahead), in.K);
    }
    V value[N], y[N], m[N] = {};
    for (int n = 0; n < N; ++n) value[n] = some(v.at(t) + first, n);
    const Real strength = correction == Correction::delta ? *b.at(t) : Real(1);
    matrix_step<correction, N, Real>(in.K, keys(t), strength, from, from_key, to, to_key, value, y, m);
    for (int n = 0; n < N; ++n) store_some(out.y + at(t) + n * L, y[n], width - n * L);
    if (correction != Correction::none && out.m)
      for (int n = 0; n < N; ++n) store_some(out.m + at(t) + n * L, m[n], width - n * L);
  }
};

}  // namespace

template <class Real>
void matrix_scan(const MatrixInputs<Real>& in, const MatrixOutputs<Real>& out, int threads) {
  constexpr int64_t L = lanes<Real>, room = vectors * L;
  const int64_t blocks = (in.V + room - 1) / room;
  with_correction(in, [&](auto correction) {
    parallel(threads_for(in, threads), in.B * in.H * blocks, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / blocks / in.H, head = i / blocks % in.H, first = i % blocks * room;
        if (in.V - first > L) Columns<correction, vectors, Real>(in, out, row, head, first).run();
        else Columns<correction, 1, Real>(in, out, row, head, first).run();
      }
    });
  });
}

template <class Real>
int append(Program<Real>& program, const MatrixOperation<Real>& o) {
  auto& steps = Steps<Real>::of(program);
  const int64_t H = o.H, K = o.K, V = o.V;
  const int y = steps.slot(H * V);
  const auto heads = [&steps](int slot, int64_t width) { return slot < 0 ? 0 : steps.width(slot) / width; };
  const int64_t a_width = o.a >= 0 && steps.width(o.a) == H ? 1 : K;
  const int64_t G = heads(o.q, K), a_heads = heads(o.a, a_width), alpha_heads = heads(o.alpha, K),
                beta_heads = heads(o.beta, K);
  steps.each_row([=](Workspace<Real>& w, int64_t row) {
    const auto of = [&](int slot, int64_t count, int64_t width) {
      return Heads<Real>{slot < 0 ? nullptr : w.at(slot, row), 0, 0, count, width};
    };
    Real* S = w.at(o.S, row);
    matrix_scan<Real>({1, 1, H, K, V, 1, of(o.q, G, K), of(o.k, G, K), of(o.v, H, V), of(o.a, a_heads, a_width), of(o.b, H, 1),
                       of(o.alpha, alpha_heads, K), of(o.beta, beta_heads, K), S, &one_step, &no_reset},
                      {w.at(y, row), S, nullptr, nullptr}, 1);
  });
  steps.costs(4 * H * K * V);
  return y;
}

#define ELMAN_INSTANCE(Real) template MatrixScan<Real> matrix_scan<Real>;
ELMAN_INSTANCE(float)
ELMAN_INSTANCE(double)
ELMAN_APPEND(MatrixOperation)

}  // namespace elman::ELMAN_NS
