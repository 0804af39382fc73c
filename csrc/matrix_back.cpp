// The scan of matrix states backward. With G the gradient at S, and u what is written with k, v or b (v - m):
//
//   G += q gy^T      gq = S gy      gu = G^T k      gk = G u      ga = sum over columns of G * S'      G' = diag(a) G
//
// and with a correction, gm = -b gu for the delta rule, where gv = b gu and gb = gu . (v - m), or gm = G^T beta, gbeta = G m:
//
//   galpha = S' gm      G' = diag(a) G + alpha gm^T
//
// and since alpha = a * k in the delta rule, its gradient is one of a and of k. Most of these sums run over columns, so a lane is a
// key here, and S and G lie as [column][key]. States were saved every so many steps; those in between are computed again, a few
// columns at a time, into the second-level cache, with the same bits, for m was saved. All rows go back one such window after
// another: what heads and columns add up to is kept for one window only, and added up in their order, whatever the threads.
#include "matrix.h"

namespace elman::ELMAN_NS {
namespace {

constexpr int tile = 4;            // columns that are worked on at once
constexpr int64_t part = 64;       // columns of a task
constexpr int64_t together = 256;  // tasks of a window, about: rows beyond these wait

// The sums over the lanes of C vectors. Of four: halves of two vectors are added up and dealt, until lane i belongs to vector
// i % 4.
template <int C, class Real>
ELMAN_INLINE void sums_of_lanes(const Vec<Real> (&v)[C], Real (&sums)[C]) {
  constexpr int L = lanes<Real>;
  if constexpr (C == 1) {
    sums[0] = sum_lanes<Real>(v[0]);
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

// What a window of a task adds up over its columns, for each step and each key; gb has one number a step.
enum Sum { gq, gk, ga, galpha, gbeta, sum_count };

// What a window of a task reads of each step and each key, zero past the last key.
enum Key { q, k, a, alpha, beta, key_count };

template <class Real>
struct Window {
  int64_t begin, end;  // steps
  Real *G, *sums, *gb;
};

template <Correction correction, class Real>
class Backward {
  using V = Vec<Real>;
  static constexpr int L = lanes<Real>;

  const MatrixInputs<Real>& in;
  const MatrixArriving<Real>& from;
  const MatrixGradients<Real>& to;
  const Window<Real>& window;
  const int64_t row, head, first, columns, keys, steps;
  const bool* reset;
  const HeadSteps<Real> v, b, gy;
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
    clear(window.sums, steps * sum_count * keys);
    clear(window.gb, steps);
    int64_t c = 0;
    for (; c + tile <= columns; c += tile) work<tile>(c);
    for (; c < columns; ++c) work<1>(c);
    if (correction == Correction::delta) deltas();
  }

 private:
  const Real* key(int64_t i, Key which) const { return read.get() + (i * key_count + which) * keys; }
  Real* sum(int64_t i, Sum which) const { return window.sums + (i * sum_count + which) * keys; }
  int64_t at(int64_t i) const { return ((row * in.T + window.begin + i) * in.H + head) * in.V + first; }

  void read_keys() {
    const HeadSteps<Real> qs(in.q, row, head, in.H), ks(in.k, row, head, in.H), as(in.a, row, head, in.H);
    const HeadSteps<Real> alphas(in.alpha, row, head, in.H), betas(in.beta, row, head, in.H);
    for (int64_t i = 0; i < steps; ++i) {
      const int64_t t = window.begin + i;
      Real* to = read.get() + i * key_count * keys;
      copy(qs.at(t), to + q * keys, in.K);
      copy(ks.at(t), to + k * keys, in.K);
      if (in.a.data && in.a.width > 1) copy(as.at(t), to + a * keys, in.K);
      else std::fill_n(to + a * keys, in.K, in.a.data ? *as.at(t) : Real(1));
      if (correction == Correction::general) copy(alphas.at(t), to + alpha * keys, in.K);
      if (correction == Correction::general) copy(betas.at(t), to + beta * keys, in.K);
      if (correction == Correction::delta)
        for (int64_t n = 0; n < in.K; ++n) to[alpha * keys + n] = to[a * keys + n] * to[k * keys + n];
    }
  }

  // What C columns of a step have: the gradient of y, the value that is written, what was read before.
  template <int C>
  struct Values {
    V gy[C], u[C], m[C];
  };
  template <int C>
  ELMAN_INLINE Values<C> values(int64_t i, int64_t c) const {
    Values<C> x;
    const int64_t t = window.begin + i;
    const Real *vt = v.at(t) + first + c, *gyt = gy.at(t) + first + c;
    for (int j = 0; j < C; ++j) {
      x.gy[j] = splat(gyt[j]);
      x.m[j] = correction == Correction::none ? V{} : splat(from.m[at(i) + c + j]);
      x.u[j] = splat(vt[j]);
      if (correction == Correction::delta) x.u[j] = *b.at(t) * (x.u[j] - x.m[j]);
    }
    return x;
  }

  // C columns from column c on.
  template <int C>
  void work(int64_t c) {
    recompute<C>(c);
    for (int64_t i = steps - 1; i >= 0; --i) back<C>(i, c);
  }

  // The state before step i: nothing, where an episode begins with it.
  const Real* before(int64_t i) const { return reset[i] ? nothing.get() : states.get() + i * tile * keys; }
  const Real* after(int64_t i) const { return states.get() + (i + 1) * tile * keys; }

  template <int C>
  void recompute(int64_t c) {
    copy(start.get() + c * keys, states.get(), C * keys);
    for (int64_t i = 0; i < steps; ++i) {
      const Values<C> x = values<C>(i, c);
      const Real *at = key(i, a), *kt = key(i, k), *betat = key(i, beta), *from = before(i);
      Real* to = states.get() + (i + 1) * tile * keys;
      for (int64_t n = 0; n < keys; n += L) {
        const V a = load<V>(at + n), k = load<V>(kt + n);
#pragma GCC unroll 4
        for (int j = 0; j < C; ++j) {
          V s = a * load<V>(from + j * keys + n);
          if (correction == Correction::general) s = fma(load<V>(betat + n), x.m[j], s);
          store(to + j * keys + n, fma(k, x.u[j], s));
        }
      }
    }
  }

  template <int C>
  ELMAN_INLINE void back(int64_t i, int64_t c) {
    const Values<C> x = values<C>(i, c);
    Real* G = window.G + (first + c) * keys;
    V gu_parts[C] = {}, gm_parts[C] = {};
    reads(i, x, G, gu_parts, gm_parts);
    Real gu[C], gm[C] = {};
    sums_of_lanes<C, Real>(gu_parts, gu);
    if (correction == Correction::general) sums_of_lanes<C, Real>(gm_parts, gm);
    Real* gv = to.gv + at(i) + c;
    copy(gu, gv, C);
    if constexpr (correction == Correction::delta) {
      const Real strength = *b.at(window.begin + i), *vt = v.at(window.begin + i) + first + c, *mt = from.m + at(i) + c;
      for (int j = 0; j < C; ++j) {
        window.gb[i] = fma(gu[j], vt[j] - mt[j], window.gb[i]);
        gv[j] = strength * gu[j];
        gm[j] = -gv[j];
      }
    }
    writes(i, x, G, gm);
    if (reset[i]) clear(G, C * keys);
  }

  // The first pass over the keys: what is read of S.
  template <int C>
  ELMAN_INLINE void reads(int64_t i, const Values<C>& x, Real* G, V (&gu)[C], V (&gm)[C]) {
    const Real *qt = key(i, q), *kt = key(i, k), *betat = key(i, beta), *S = after(i);
    Real* gqt = sum(i, gq);
    for (int64_t n = 0; n < keys; n += L) {
      const V q = load<V>(qt + n), k = load<V>(kt + n);
      V by_q = load<V>(gqt + n);
#pragma GCC unroll 4
      for (int j = 0; j < C; ++j) {
        const V g = fma(q, x.gy[j], load<V>(G + j * keys + n));
        store(G + j * keys + n, g);
        gu[j] = fma(g, k, gu[j]);
        by_q = fma(load<V>(S + j * keys + n), x.gy[j], by_q);
        if (correction == Correction::general) gm[j] = fma(g, load<V>(betat + n), gm[j]);
      }
      store(gqt + n, by_q);
    }
  }

  // The second: what is written to S, and how S' is kept.
  template <int C>
  ELMAN_INLINE void writes(int64_t i, const Values<C>& x, Real* G, const Real (&gm)[C]) {
    const Real *at = key(i, a), *alphat = key(i, alpha), *S = before(i);
    Real *gkt = sum(i, gk), *gat = sum(i, ga), *galphat = sum(i, galpha), *gbetat = sum(i, gbeta);
    V gms[C];
    for (int j = 0; j < C; ++j) gms[j] = splat(gm[j]);
    for (int64_t n = 0; n < keys; n += L) {
      const V a = load<V>(at + n), alpha = load<V>(alphat + n);
      V by_k = load<V>(gkt + n), by_a = load<V>(gat + n), by_alpha = load<V>(galphat + n), by_beta = load<V>(gbetat + n);
#pragma GCC unroll 4
      for (int j = 0; j < C; ++j) {
        const V g = load<V>(G + j * keys + n), s = load<V>(S + j * keys + n);
        by_k = fma(g, x.u[j], by_k);
        by_a = fma(g, s, by_a);
        V onward = a * g;
        if (correction != Correction::none) {
          by_alpha = fma(s, gms[j], by_alpha);
          onward = fma(alpha, gms[j], onward);
        }
        if (correction == Correction::general) by_beta = fma(g, x.m[j], by_beta);
        store(G + j * keys + n, onward);
      }
      store(gkt + n, by_k);
      store(gat + n, by_a);
      if (correction != Correction::none) store(galphat + n, by_alpha);
      if (correction == Correction::general) store(gbetat + n, by_beta);
    }
  }

  // From the gradient of alpha = a * k to those of a and k.
  void deltas() {
    for (int64_t i = 0; i < steps; ++i)
      for (int64_t n = 0; n < keys; n += L) {
        const V g = load<V>(sum(i, galpha) + n);
        store(sum(i, gk) + n, fma(g, load<V>(key(i, a) + n), load<V>(sum(i, gk) + n)));
        store(sum(i, ga) + n, fma(g, load<V>(key(i, k) + n), load<V>(sum(i, ga) + n)));
      }
  }
};

// All rows from `first_row` on that go back together.
template <class Real>
class Rewind {
  static constexpr int L = lanes<Real>;

  const MatrixInputs<Real>& in;
  const MatrixArriving<Real>& from;
  const MatrixGradients<Real>& to;
  const int threads;
  const int64_t first_row, rows, keys, parts;
  const Buffer<Real> G, sums, gb;  // G: [row][head][column][key]; the others for each row, head and part, one window of steps

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
        G(allocate<Real>(rows * in.H * in.V * keys)),
        sums(allocate<Real>(rows * in.H * parts * in.every * sum_count * keys)),
        gb(allocate<Real>(rows * in.H * parts * in.every)) {}

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
  Real* gb_of(int64_t row, int64_t head, int64_t p) const { return gb.get() + ((row * in.H + head) * parts + p) * in.every; }

  void go_back(int64_t begin, int64_t end) {
    with_correction(in, [&](auto correction) {
      parallel(threads, rows * in.H * parts, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
          const int64_t row = i / parts / in.H, head = i / parts % in.H, p = i % parts;
          const int64_t stop = std::min(end, in.lengths[first_row + row]);
          if (stop <= begin) continue;
          const Window<Real> window{begin, stop, gradient(row * in.H + head), sums_of(row, head, p), gb_of(row, head, p)};
          Backward<correction, Real>(in, from, to, window, first_row + row, head, p * part).run();
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
        add_heads(row, t, t - begin, Sum::ga, in.a, to.ga, room.get());
        add_heads(row, t, t - begin, Sum::galpha, in.alpha, to.galpha, room.get());
        add_heads(row, t, t - begin, Sum::gbeta, in.beta, to.gbeta, room.get());
        if (to.gb)
          for (int64_t h = 0; h < in.H; ++h) {
            Real& total = to.gb[((first_row + row) * in.T + t) * in.H + h] = Real(0);
            for (int64_t p = 0; p < parts; ++p) total += gb_of(row, h, p)[t - begin];
          }
      }
    });
  }

  void add_heads(int64_t row, int64_t t, int64_t step, Sum which, const Heads<Real>& x, Real* to, Real* room) const {
    if (!to) return;
    using V = Vec<Real>;
    const int64_t each = in.H / x.count;  // heads of a group
    for (int64_t group = 0; group < x.count; ++group) {
      clear(room, keys);
      for (int64_t h = group * each; h < (group + 1) * each; ++h)
        for (int64_t p = 0; p < parts; ++p) {
          const Real* more = sums_of(row, h, p) + (step * sum_count + which) * keys;
          for (int64_t n = 0; n < keys; n += L) store(room + n, V(load<V>(room + n) + load<V>(more + n)));
        }
      Real* there = to + (((first_row + row) * in.T + t) * x.count + group) * x.width;
      if (x.width == in.K) {
        copy(room, there, in.K);
      } else {  // one decay for all keys
        V total{};
        for (int64_t n = 0; n < keys; n += L) total = total + load<V>(room + n);
        *there = sum_lanes<Real>(total);
      }
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
