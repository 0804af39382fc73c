// The scan of matrix states, step by step: for each head S = diag(a) S' + k v^T, with a correction of rank one or none
// (matrix.h), and y = S^T q.
//
// A lane is a column of S, and columns do not see each other. A task is a few columns of one head of one row: its piece of S,
// [key][column], stays in the first-level cache while time goes on. It is read and written once a step: what the next step's
// correction reads of S is added up while S is written. Key i is added to accumulator i % 2 of a sum over keys, whatever columns
// stand beside, and whether a step before has added it up: so cuts in time, batches and threads do not change a bit.
// (In chunks, as GPUs do it, there would be as many instructions and a system of equations, and cuts would change the bits.)
#include "matrix.h"

#include "steps.h"

namespace elman::ELMAN_NS {
namespace {

constexpr int accumulators = 2;                   // of a sum over keys
constexpr int most = lanes<float> == 16 ? 4 : 2;  // vectors of columns of a task: as the registers have room for their sums
constexpr int64_t nearest = 1 << 14;              // bytes of S of a task that has more than two: half of the first-level cache

// f(i, accumulator) for every key, the number of the accumulator known to the compiler.
template <class F>
ELMAN_INLINE void each_key(int64_t K, const F& f) {
  int64_t i = 0;
  for (; i + accumulators <= K; i += accumulators)
#pragma GCC unroll 2
    for (int p = 0; p < accumulators; ++p) f(i + p, p);
  if (i < K) f(i, 0);
}

template <int N, class V>
ELMAN_INLINE void add_up(const V (&parts)[accumulators][N], V (&sum)[N]) {
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) sum[n] = parts[0][n] + parts[1][n];
}

// S^T x of N vectors of columns; keys are `key` apart.
template <int N, class Real>
ELMAN_INLINE void read_columns(int64_t K, const Real* x, const Real* S, int64_t key, Vec<Real> (&sum)[N]) {
  using V = Vec<Real>;
  V parts[accumulators][N] = {};
  each_key(K, [&](int64_t i, int p) {
    const V each = splat(x[i]);
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) parts[p][n] = fma(each, load<V>(S + i * key + n * lanes<Real>), parts[p][n]);
  });
  add_up(parts, sum);
}

// What a step reads of its head, each (K), a perhaps one for all keys; `next` is what the step after it reads S with.
template <class Real>
struct StepKeys {
  const Real *q, *k, *a, *beta, *next;
};

// N vectors of columns of a step: from S in `from` to S in `to`, which may be the same, keys `from_key` and `to_key` apart. m is
// what the correction has read of `from`, d what is written with k, y is read with q, and `m_next` with `next`, if there is one.
template <bool by_key, bool general, bool ahead, int N, class Real>
ELMAN_INLINE void matrix_step(int64_t K, const StepKeys<Real>& x, const Real* from, int64_t from_key, Real* to, int64_t to_key,
                              const Vec<Real> (&m)[N], const Vec<Real> (&d)[N], Vec<Real> (&y)[N], Vec<Real> (&m_next)[N]) {
  using V = Vec<Real>;
  constexpr int L = lanes<Real>;
  V reads[accumulators][N] = {}, nexts[accumulators][N] = {};
  const V all = splat(x.a[0]);
  each_key(K, [&](int64_t i, int p) {
    const V a = by_key ? splat(x.a[i]) : all, k = splat(x.k[i]), q = splat(x.q[i]);
    const V next = ahead ? splat(x.next[i]) : V{};
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      V s = a * load<V>(from + i * from_key + n * L);
      if constexpr (general) s = fma(splat(x.beta[i]), m[n], s);
      s = fma(k, d[n], s);
      store(to + i * to_key + n * L, s);
      reads[p][n] = fma(q, s, reads[p][n]);
      if constexpr (ahead) nexts[p][n] = fma(next, s, nexts[p][n]);
    }
  });
  add_up(reads, y);
  if constexpr (ahead) add_up(nexts, m_next);
}

template <class Real>
ELMAN_INLINE void fetch(const Real* p, int64_t count) {
  for (int64_t i = 0; i < count; i += cache_line / int64_t(sizeof(Real))) __builtin_prefetch(p + i);
}

// At most N vectors of columns of the state of one head of one row.
template <Correction correction, Decay decays, int N, class Real>
class Columns {
  using V = Vec<Real>;
  static constexpr int L = lanes<Real>;
  static constexpr int64_t room = N * L;
  static constexpr int64_t fetched = 2;  // steps ahead whose inputs are asked for: a processor does not guess where they lie
  static constexpr bool delta = correction == Correction::delta, corrected = correction != Correction::none;
  static constexpr bool by_key = decays == Decay::each_key;

  const MatrixInputs<Real>& in;
  const MatrixOutputs<Real>& out;
  const int64_t row, head, first, width, length;
  const bool* reset;
  const HeadSteps<Real> q, k, v, a, b, alpha, beta;
  const Buffer<Real> S, products;  // S: [key][column]; a * k of a step
  const Real one = 1;
  V m[N] = {};  // what the correction of a step reads

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
        products(allocate<Real>(delta && by_key ? in.K + L : 0)) {}

  void run() {
    const int64_t state = (row * in.H + head) * in.K * in.V + first;
    // Whole vectors are read where the first step finds them, and written where the last step's belong.
    const bool whole = width == room && length > 0;
    bool known = false;  // whether the step before has read S for this one
    if (!whole) read(in.S0 + state);
    for (int64_t t = 0; t < length; ++t) {
      if (out.saved && t > 0 && t % in.every == 0) write(out.saved + checkpoint(in, row, head, t / in.every) + first);
      if (reset[t]) clear(S.get(), in.K * room);
      const bool begins = whole && t == 0 && !reset[t], ends = whole && t == length - 1;
      const Real* from = begins ? in.S0 + state : S.get();
      Real* to = ends ? out.last + state : S.get();
      const int64_t from_key = begins ? in.V : room, to_key = ends ? in.V : room;
      if (corrected && !known) read_columns<N, Real>(in.K, reader(t), from, from_key, m);
      known = corrected && t + 1 < length && !reset[t + 1];
      if (known) step<corrected>(t, from, from_key, to, to_key);
      else step<false>(t, from, from_key, to, to_key);
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
      for (int n = 0; n < N; ++n) store_some(to + i * in.V + n * L, load<V>(S.get() + i * room + n * L), filled(n));
  }
  // How much of a vector there is: nothing of the last ones, perhaps.
  ELMAN_INLINE int64_t filled(int n) const { return std::max<int64_t>(width - n * L, 0); }
  ELMAN_INLINE V some(const Real* from, int n) const { return load_some(from + n * L, filled(n)); }

  const Real* decay(int64_t t) const { return decays == Decay::none ? &one : a.at(t); }

  // What the correction of a step reads S with. One decay for all keys is multiplied by afterwards.
  const Real* reader(int64_t t) {
    if (!delta) return alpha.at(t);
    if (!by_key) return k.at(t);
    for (int64_t i = 0; i < in.K; i += L)
      store(products.get() + i, V(load_some(a.at(t) + i, in.K - i) * load_some(k.at(t) + i, in.K - i)));
    return products.get();
  }

  template <bool ahead>
  ELMAN_INLINE void step(int64_t t, const Real* from, int64_t from_key, Real* to, int64_t to_key) {
    if (t + fetched < length) {
      fetch(q.at(t + fetched), in.K);
      fetch(k.at(t + fetched), in.K);
      fetch(v.at(t + fetched) + first, width);
      if (by_key) fetch(a.at(t + fetched), in.K);
      if (!delta && corrected) fetch(alpha.at(t + fetched), in.K), fetch(beta.at(t + fetched), in.K);
    }
    V d[N], y[N], next[N];
    for (int n = 0; n < N; ++n) {
      d[n] = some(v.at(t) + first, n);
      if constexpr (delta) {
        if (!by_key) m[n] = *decay(t) * m[n];
        d[n] = *b.at(t) * (d[n] - m[n]);
      }
    }
    const StepKeys<Real> keys{q.at(t), k.at(t), decay(t), beta.at(t), ahead ? reader(t + 1) : nullptr};
    matrix_step<by_key, corrected && !delta, ahead, N, Real>(in.K, keys, from, from_key, to, to_key, m, d, y, next);
    for (int n = 0; n < N; ++n) {
      store_some(out.y + at(t) + n * L, y[n], filled(n));
      if (corrected && out.m) store_some(out.m + at(t) + n * L, m[n], filled(n));
      if (ahead) m[n] = next[n];
    }
  }
};

}  // namespace

template <class Real>
void matrix_scan(const MatrixInputs<Real>& in, const MatrixOutputs<Real>& out, int threads) {
  constexpr int64_t L = lanes<Real>;
  const int64_t vectors = in.K * most * vector_bytes <= nearest ? most : 2;
  const int64_t room = vectors * L, blocks = (in.V + room - 1) / room;
  with_rule(in, [&](auto correction, auto decay) {
    parallel(threads_for(in, threads), in.B * in.H * blocks, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / blocks / in.H, head = i / blocks % in.H, first = i % blocks * room;
        const int64_t columns = std::min(room, in.V - first);
        if (columns > 2 * L) Columns<correction, decay, most, Real>(in, out, row, head, first).run();
        else if (columns > L) Columns<correction, decay, 2, Real>(in, out, row, head, first).run();
        else Columns<correction, decay, 1, Real>(in, out, row, head, first).run();
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
