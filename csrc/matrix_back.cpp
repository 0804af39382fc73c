// The scan of matrix states backward. With G the gradient at S, and u what is written with k, v or b (v - m):
//
//   G += q gy^T      gq = S gy      gu = G^T k      gk = G u      ga = sum over columns of G * S'      G' = diag(a) G
//
// and with a correction, by the delta rule, where gv = b gu, gb = gu . (v - m), gm = -b gu and m = k^T diag(a) S':
//
//   G += k gm^T before ga and G'      gk += diag(a) S' gm
//
// or any, where gm = G^T beta and gbeta = G m:
//
//   galpha = S' gm      G' = diag(a) G + alpha gm^T
//
// Most of these sums run over columns, so a lane is a key here, and S and G lie as [column][key]. States were saved every so many
// steps; those in between are computed again, a few columns at a time, into the second-level cache, with the same bits, for m was
// saved. G is read and written once a step: while G' is written, what the step before reads of it is added up. All rows go back
// one such window after another: what heads and columns add up to is kept for one window only, and added up in their order,
// whatever the threads.
#include "matrix.h"

namespace elman::ELMAN_NS {
namespace {

constexpr int64_t part = 64;       // columns of a task
constexpr int64_t together = 256;  // tasks of a window, about: rows beyond these wait

// The sums over the lanes of C vectors. Of four: halves of two vectors are added up and dealt, until lane i belongs to vector
// i % 4.
template <int C, class Real>
ELMAN_INLINE void sums_of_lanes(const Vec<Real>* v, Real* sums) {
  constexpr int L = lanes<Real>;
  if constexpr (C == 1) {
    sums[0] = sum_lanes<Real>(v[0]);
  } else if constexpr (C > 4) {
    sums_of_lanes<4, Real>(v, sums);
    sums_of_lanes<C - 4, Real>(v + 4, sums + 4);
  } else {
    const Vec<Real> even = interleave<0>(v[0], v[2]) + interleave<L / 2>(v[0], v[2]);
    const Vec<Real> odd = interleave<0>(v[1], v[3]) + interleave<L / 2>(v[1], v[3]);
    if constexpr (L == 2) {
      for (int i = 0; i < 2; ++i) sums[2 * i] = even[i], sums[2 * i + 1] = odd[i];
    } else {
      const Vec<Real> all = fold_to_four<Real>(interleave<0>(even, odd) + interleave<L / 2>(even, odd));
      for (int i = 0; i < 4; ++i) sums[i] = all[i];
    }
  }
}

// What a window of a task adds up over its columns, for each step and each key, as far as there is a decay for each key and a
// general correction.
enum Sum { gq, gk, ga, galpha, gbeta };

// What a window of a task reads of each step and each key, zero past the last key.
enum Key { q, k, a, alpha, beta };

constexpr int64_t sum_count(bool general, bool by_key) { return general ? 5 : by_key ? 3 : 2; }

template <class Real>
struct Window {
  int64_t begin, end;        // steps
  Real *G, *sums, *gb, *ga;  // the last two one number a step: ga where one decay is for all keys
};

template <Correction correction, Decay decay, class Real>
class Backward {
  using V = Vec<Real>;
  static constexpr int L = lanes<Real>;
  static constexpr bool by_key = decay == Decay::each_key;
  static constexpr bool delta = correction == Correction::delta, general = correction == Correction::general;
  // Columns that are worked on at once, as the registers have room for their sums.
  static constexpr int tile = vector_bytes == 64 && !general ? 8 : 4;
  static constexpr int64_t key_count = general ? 5 : by_key ? 3 : 2;

  const MatrixInputs<Real>& in;
  const MatrixArriving<Real>& from;
  const MatrixGradients<Real>& to;
  const Window<Real>& window;
  const int64_t row, head, first, columns, keys, steps;
  const bool* reset;
  const HeadSteps<Real> v, a_one, b, gy;
  const Buffer<Real> read, start, states, nothing;

 public:
  Backward(const MatrixInputs<Real>& in, const MatrixArriving<Real>& from, const MatrixGradients<Real>& to,
           const Window<Real>& window, int64_t row, int64_t head, int64_t first)
      : in(in),
        from(from),
        to(to),
        window(window),
        row(row),
        head(head),
        first(first),
        columns(std::min(part, in.V - first)),
        keys(padded<Real>(in.K)),
        steps(window.end - window.begin),
        reset(in.reset + row * in.T + window.begin),
        v(in.v, row, head, in.H),
        a_one(in.a, row, head, in.H),
        b(in.b, row, head, in.H),
        gy(from.gy, row, head, in.H),
        read(zeros<Real>(steps * key_count * keys)),
        start(allocate<Real>(columns * keys)),
        states(allocate<Real>((steps + 1) * tile * keys)),
        nothing(zeros<Real>(tile * keys)) {}

  void run() {
    read_keys();
    const int64_t head_state = (row * in.H + head) * in.K * in.V;
    const Real* S = window.begin == 0 ? in.S0 + head_state : from.saved + checkpoint(in, row, head, window.begin / in.every);
    pack_keys(in, S + first, columns, start.get());
    clear(window.sums, steps * sum_count(general, by_key) * keys);
    clear(window.gb, steps);
    clear(window.ga, steps);
    int64_t c = 0;
    for (; c + tile <= columns; c += tile) work<tile>(c);
    for (; c < columns; ++c) work<1>(c);
  }

 private:
  const Real* key(int64_t i, Key which) const { return read.get() + (i * key_count + which) * keys; }
  Real* sum(int64_t i, Sum which) const { return window.sums + (i * sum_count(general, by_key) + which) * keys; }
  int64_t at(int64_t i) const { return ((row * in.T + window.begin + i) * in.H + head) * in.V + first; }

  void read_keys() {
    const HeadSteps<Real> qs(in.q, row, head, in.H), ks(in.k, row, head, in.H), as(in.a, row, head, in.H);
    const HeadSteps<Real> alphas(in.alpha, row, head, in.H), betas(in.beta, row, head, in.H);
    for (int64_t i = 0; i < steps; ++i) {
      const int64_t t = window.begin + i;
      Real* to = read.get() + i * key_count * keys;
      copy(qs.at(t), to + q * keys, in.K);
      copy(ks.at(t), to + k * keys, in.K);
      if (by_key) copy(as.at(t), to + a * keys, in.K);
      if (general) copy(alphas.at(t), to + alpha * keys, in.K);
      if (general) copy(betas.at(t), to + beta * keys, in.K);
    }
  }

  // What C columns of a step have: the gradient of y, the value that is written, what was read before and its gradient.
  template <int C>
  struct Values {
    V gy[C], u[C], m[C], gm[C];
  };
  template <int C>
  ELMAN_INLINE Values<C> values(int64_t i, int64_t c) const {
    Values<C> x;
    const int64_t t = window.begin + i;
    const Real *vt = v.at(t) + first + c, *gyt = gy.at(t) + first + c;
    for (int j = 0; j < C; ++j) {
      x.gy[j] = splat(gyt[j]);
      x.m[j] = delta || general ? splat(from.m[at(i) + c + j]) : V{};
      x.u[j] = splat(vt[j]);
      if (delta) x.u[j] = *b.at(t) * (x.u[j] - x.m[j]);
    }
    return x;
  }

  // What the sums over keys of C columns are made of: the gradients of u and of m.
  template <int C>
  struct Reads {
    V gu[C], gm[C];
  };

  // C columns from column c on.
  template <int C>
  void work(int64_t c) {
    recompute<C>(c);
    Real* G = window.G + (first + c) * keys;
    Reads<C> reads;
    bool known = false;  // whether the step after has read G for this one
    for (int64_t i = steps - 1; i >= 0; --i) {
      Values<C> x = values<C>(i, c);
      if (!known) read_gradient<C>(i, x, G, reads);
      of_values<C>(i, c, x, reads);
      known = i > 0 && !reset[i];
      if (known) back<C, true>(i, x, values<C>(i - 1, c), G, reads);
      else back<C, false>(i, x, x, G, reads);
      if (reset[i]) clear(G, C * keys);
    }
  }

  // The state before step i: nothing, where an episode begins with it.
  const Real* before(int64_t i) const { return reset[i] ? nothing.get() : states.get() + i * tile * keys; }
  const Real* after(int64_t i) const { return states.get() + (i + 1) * tile * keys; }

  ELMAN_INLINE V decays(int64_t i, int64_t n) const {
    if constexpr (by_key) return load<V>(key(i, a) + n);
    else return splat(decay == Decay::none ? Real(1) : *a_one.at(window.begin + i));
  }

  template <int C>
  void recompute(int64_t c) {
    copy(start.get() + c * keys, states.get(), C * keys);
    for (int64_t i = 0; i < steps; ++i) {
      const Values<C> x = values<C>(i, c);
      const Real *kt = key(i, k), *from = before(i);
      Real* to = states.get() + (i + 1) * tile * keys;
      for (int64_t n = 0; n < keys; n += L) {
        const V a = decays(i, n), k = load<V>(kt + n);
#pragma GCC unroll 8
        for (int j = 0; j < C; ++j) {
          V s = a * load<V>(from + j * keys + n);
          if (general) s = fma(load<V>(key(i, beta) + n), x.m[j], s);
          store(to + j * keys + n, fma(k, x.u[j], s));
        }
      }
    }
  }

  // G += q gy^T, and what the step reads of it.
  template <int C>
  ELMAN_INLINE void read_gradient(int64_t i, const Values<C>& x, Real* G, Reads<C>& reads) {
    reads = {};
    for (int64_t n = 0; n < keys; n += L) {
      const V q = load<V>(key(i, Key::q) + n), k = load<V>(key(i, Key::k) + n);
      V by_q = load<V>(sum(i, gq) + n);
#pragma GCC unroll 8
      for (int j = 0; j < C; ++j) {
        const V g = fma(q, x.gy[j], load<V>(G + j * keys + n));
        store(G + j * keys + n, g);
        reads.gu[j] = fma(g, k, reads.gu[j]);
        by_q = fma(load<V>(after(i) + j * keys + n), x.gy[j], by_q);
        if (general) reads.gm[j] = fma(g, load<V>(key(i, beta) + n), reads.gm[j]);
      }
      store(sum(i, gq) + n, by_q);
    }
  }

  // The gradients of v, b and m.
  template <int C>
  ELMAN_INLINE void of_values(int64_t i, int64_t c, Values<C>& x, const Reads<C>& reads) {
    Real gu[C], gm[C] = {};
    sums_of_lanes<C, Real>(reads.gu, gu);
    if (general) sums_of_lanes<C, Real>(reads.gm, gm);
    Real* gv = to.gv + at(i) + c;
    if (delta) {
      const Real strength = *b.at(window.begin + i), *vt = v.at(window.begin + i) + first + c, *mt = from.m + at(i) + c;
      for (int j = 0; j < C; ++j) {
        window.gb[i] = fma(gu[j], vt[j] - mt[j], window.gb[i]);
        gv[j] = strength * gu[j];
        gm[j] = -gv[j];
      }
    } else {
      copy(gu, gv, C);
    }
    for (int j = 0; j < C; ++j) x.gm[j] = splat(gm[j]);
  }

  // What is written to S, and how S' is kept; and, `ahead`, what the step before, whose values `x1` are, reads of G'.
  template <int C, bool ahead>
  ELMAN_INLINE void back(int64_t i, const Values<C>& x, const Values<C>& x1, Real* G, Reads<C>& reads) {
    const Real* S = before(i);
    V gu[C] = {}, gm[C] = {}, all_a{};
    for (int64_t n = 0; n < keys; n += L) {
      const V a = decays(i, n), k = load<V>(key(i, Key::k) + n);
      V by_k = load<V>(sum(i, gk) + n), by_a{}, by_m{}, by_beta{}, by_q{}, q1{}, k1{};
      if (ahead) by_q = load<V>(sum(i - 1, gq) + n), q1 = load<V>(key(i - 1, Key::q) + n), k1 = load<V>(key(i - 1, Key::k) + n);
#pragma GCC unroll 8
      for (int j = 0; j < C; ++j) {
        V g = load<V>(G + j * keys + n);
        const V s = load<V>(S + j * keys + n);
        by_k = fma(g, x.u[j], by_k);
        if (delta) g = fma(k, x.gm[j], g);
        if (decay != Decay::none) by_a = fma(g, s, by_a);
        if (delta || general) by_m = fma(s, x.gm[j], by_m);
        if (general) by_beta = fma(g, x.m[j], by_beta);
        if (decay != Decay::none) g = a * g;
        if (general) g = fma(load<V>(key(i, alpha) + n), x.gm[j], g);
        if (ahead) {
          g = fma(q1, x1.gy[j], g);
          gu[j] = fma(g, k1, gu[j]);
          by_q = fma(s, x1.gy[j], by_q);
          if (general) gm[j] = fma(g, load<V>(key(i - 1, beta) + n), gm[j]);
        }
        store(G + j * keys + n, g);
      }
      store(sum(i, gk) + n, delta ? fma(a, by_m, by_k) : by_k);
      if (by_key) add(sum(i, ga) + n, by_a);
      else all_a = all_a + by_a;
      if (general) add(sum(i, galpha) + n, by_m), add(sum(i, gbeta) + n, by_beta);
      if (ahead) store(sum(i - 1, gq) + n, by_q);
    }
    if (decay == Decay::one) window.ga[i] += sum_lanes<Real>(all_a);
    for (int j = 0; j < C; ++j) reads.gu[j] = gu[j], reads.gm[j] = gm[j];
  }

  ELMAN_INLINE static void add(Real* to, V more) { store(to, V(load<V>(to) + more)); }
};

// All rows from `first_row` on that go back together.
template <class Real>
class Rewind {
  static constexpr int L = lanes<Real>;

  const MatrixInputs<Real>& in;
  const MatrixArriving<Real>& from;
  const MatrixGradients<Real>& to;
  const int threads;
  const int64_t first_row, rows, keys, parts, sum_count;
  // G: [row][head][column][key]; the others for each row, head and part, one window of steps
  const Buffer<Real> G, sums, gb, ga;

 public:
  Rewind(const MatrixInputs<Real>& in, const MatrixArriving<Real>& from, const MatrixGradients<Real>& to, int threads,
         int64_t first_row, int64_t rows)
      : in(in),
        from(from),
        to(to),
        threads(threads),
        first_row(first_row),
        rows(rows),
        keys(padded<Real>(in.K)),
        parts((in.V + part - 1) / part),
        sum_count(ELMAN_NS::sum_count(in.alpha.data, in.a.data && in.a.width > 1)),
        G(allocate<Real>(rows * in.H * in.V * keys)),
        sums(allocate<Real>(rows * in.H * parts * in.every * sum_count * keys)),
        gb(allocate<Real>(rows * in.H * parts * in.every)),
        ga(allocate<Real>(rows * in.H * parts * in.every)) {}

  void run() {
    int64_t longest = 0;
    for (int64_t i = 0; i < rows; ++i) longest = std::max(longest, in.lengths[first_row + i]);
    parallel(threads, rows * in.H, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) pack_keys(in, from.glast + state(i), in.V, gradient(i));
    });
    clear_past(longest);
    for (int64_t end = longest; end > 0;) {
      const int64_t begin = (end - 1) / in.every * in.every;
      go_back(begin, end);
      add_up(begin, end);
      end = begin;
    }
    parallel(threads, rows * in.H, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) unpack_keys(gradient(i), to.gS0 + state(i));
    });
  }

 private:
  // [column][key] as [key][column].
  void unpack_keys(const Real* from, Real* to) const {
    int64_t c = 0;
    for (; c + L <= in.V; c += L) pack_lanes(from + c * keys, keys, L, in.K, to + c, in.V);
    for (; c < in.V; ++c)
      for (int64_t n = 0; n < in.K; ++n) to[n * in.V + c] = from[c * keys + n];
  }

  int64_t state(int64_t i) const { return (first_row * in.H + i) * in.K * in.V; }
  Real* gradient(int64_t i) const { return G.get() + i * in.V * keys; }
  Real* sums_of(int64_t row, int64_t head, int64_t p) const {
    return sums.get() + ((row * in.H + head) * parts + p) * in.every * sum_count * keys;
  }
  Real* each_step(const Buffer<Real>& x, int64_t row, int64_t head, int64_t p) const {
    return x.get() + ((row * in.H + head) * parts + p) * in.every;
  }

  void go_back(int64_t begin, int64_t end) {
    with_rule(in, [&](auto correction, auto decay) {
      parallel(threads, rows * in.H * parts, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
          const int64_t row = i / parts / in.H, head = i / parts % in.H, p = i % parts;
          const int64_t stop = std::min(end, in.lengths[first_row + row]);
          if (stop <= begin) continue;
          const Window<Real> window{begin,
                                    stop,
                                    gradient(row * in.H + head),
                                    sums_of(row, head, p),
                                    each_step(gb, row, head, p),
                                    each_step(ga, row, head, p)};
          Backward<correction, decay, Real>(in, from, to, window, first_row + row, head, p * part).run();
        }
      });
    });
  }

  // What the parts and the heads of a group have, in their order.
  void add_up(int64_t begin, int64_t end) {
    parallel(threads, rows * (end - begin), [&](int64_t first, int64_t last) {
      const auto room = allocate<Real>(keys);
      for (int64_t i = first; i < last; ++i) {
        const int64_t row = i / (end - begin), t = begin + i % (end - begin);
        if (t >= in.lengths[first_row + row]) {
          clear_step(row, t);
          continue;
        }
        add_heads(row, t, t - begin, Sum::gq, in.q, to.gq, room.get());
        add_heads(row, t, t - begin, Sum::gk, in.k, to.gk, room.get());
        if (in.a.width > 1) add_heads(row, t, t - begin, Sum::ga, in.a, to.ga, room.get());
        else add_steps(row, t, t - begin, ga, in.a, to.ga);
        add_heads(row, t, t - begin, Sum::galpha, in.alpha, to.galpha, room.get());
        add_heads(row, t, t - begin, Sum::gbeta, in.beta, to.gbeta, room.get());
        add_steps(row, t, t - begin, gb, in.b, to.gb);
      }
    });
  }

  void add_heads(int64_t row, int64_t t, int64_t step, Sum which, const Heads<Real>& x, Real* to, Real* room) const {
    if (!to) return;
    const int64_t each = in.H / x.count;  // heads of a group
    for (int64_t group = 0; group < x.count; ++group) {
      clear(room, keys);
      for (int64_t h = group * each; h < (group + 1) * each; ++h)
        for (int64_t p = 0; p < parts; ++p) {
          const Real* more = sums_of(row, h, p) + (step * sum_count + which) * keys;
          for (int64_t n = 0; n < keys; n += L)
            store(room + n, Vec<Real>(load<Vec<Real>>(room + n) + load<Vec<Real>>(more + n)));
        }
      copy(room, to + (((first_row + row) * in.T + t) * x.count + group) * in.K, in.K);
    }
  }

  // The same of one number a step.
  void add_steps(int64_t row, int64_t t, int64_t step, const Buffer<Real>& sums, const Heads<Real>& x, Real* to) const {
    if (!to) return;
    const int64_t each = in.H / x.count;
    for (int64_t group = 0; group < x.count; ++group) {
      Real& total = to[((first_row + row) * in.T + t) * x.count + group] = Real(0);
      for (int64_t h = group * each; h < (group + 1) * each; ++h)
        for (int64_t p = 0; p < parts; ++p) total += each_step(sums, row, h, p)[step];
    }
  }

  void clear_step(int64_t row, int64_t t) const {
    const int64_t at = (first_row + row) * in.T + t;
    const auto none = [at](const Heads<Real>& x, Real* to) {
      if (to) clear(to + at * x.count * x.width, x.count * x.width);
    };
    none(in.q, to.gq), none(in.k, to.gk), none(in.v, to.gv), none(in.a, to.ga);
    none(in.b, to.gb), none(in.alpha, to.galpha), none(in.beta, to.gbeta);
  }
  void clear_past(int64_t longest) const {
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t t = longest; t < in.T; ++t) clear_step(row, t);
  }
};

}  // namespace

template <class Real>
void matrix_scan_back(const MatrixInputs<Real>& in, const MatrixArriving<Real>& arriving, const MatrixGradients<Real>& to,
                      int threads) {
  const int64_t tasks = std::max<int64_t>(in.H * ((in.V + part - 1) / part), 1);
  const int64_t rows = std::max<int64_t>(together / tasks, 1);
  for (int64_t row = 0; row < in.B; row += rows)
    Rewind<Real>(in, arriving, to, threads_for(in, threads), row, std::min(rows, in.B - row)).run();
}

template MatrixScanBack<float> matrix_scan_back<float>;
template MatrixScanBack<double> matrix_scan_back<double>;

}  // namespace elman::ELMAN_NS
