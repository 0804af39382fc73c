// The cells of the gated loops: what happens to one block of units of one row at one step, forward and backward.
//
// Letters: s is the logistic function, a prime is the previous step, q is what a second product reads.
// `first` gates are summed over h', then `second` gates over q; a cell of one product has second = 0.
// D is the gradient of h; g[i] that of the sum of gate i; `direct` is what of D reaches h' without a product.
// Gate i's sum starts from u, so that g[i] is also the gradient of u, but where shared_last says that the last sum starts
// from a bias and u comes in later: then `gu_last` is the last gradient of u.
#pragma once

#include <stdexcept>
#include <string>

#include "gated_layout.h"
#include "math.h"
#include "simd.h"

namespace elman::ELMAN_NS {

// The function that makes a cell's candidate.
enum class Phi { tanh, relu, logistic };

template <class Real>
struct Forward {
  const Real* u;         // gate i of this block is at u + i * lanes
  Vec<Real> extra;       // a weight per unit: the bias in the GRU's candidate, the leak of the rate cell, IndRNN's w
  Vec<Real> h, c;        // the state before; c becomes the state after
  Vec<Real> z;           // a gate that waits for the second product
  Phi phi;               // which function makes the candidate
  bool normed;           // LSTM: c is normalised on its way to h, which the caller does
  const Real* peephole;  // LSTM: weight i is at peephole + i * stride; null without
  Real* save;            // value i goes to save + i * stride; null where nothing is saved
  int64_t stride;

  ELMAN_INLINE Vec<Real> input(int i) const { return load<Vec<Real>>(u + i * lanes<Real>); }
  ELMAN_INLINE Vec<Real> peep(int i) const { return load<Vec<Real>>(peephole + i * stride); }
  ELMAN_INLINE void leave(int i, Vec<Real> v) const {
    if (save) store(save + i * stride, v);
  }
};

template <class Real>
struct Backward {
  const Real* save;
  int64_t stride;
  Phi phi;
  bool normed;
  const Real* peephole;
  Vec<Real> extra;
  Vec<Real> h, y, c;          // the state before, the output, LSTM's cell before
  Vec<Real> D, dc;            // gradients of h and of LSTM's c; dc becomes that of c'
  Vec<Real> tanh_c, dc_by_h;  // LSTM's: tanh of c, and what of the gradient of c comes from h
  Vec<Real> g[4], direct, gu_last, q;

  ELMAN_INLINE Vec<Real> peep(int i) const { return load<Vec<Real>>(peephole + i * stride); }
  ELMAN_INLINE Vec<Real> saved(int i) const { return load<Vec<Real>>(save + i * stride); }
};

template <class Real>
ELMAN_INLINE Vec<Real> slope_of_logistic(Vec<Real> s) {
  return s * (Real(1) - s);
}

// Which one is a branch that is always predicted, not one more copy of the loop to compile.
template <class Real>
ELMAN_INLINE Vec<Real> tanh_or_relu(Phi phi, Vec<Real> x) {
  if (phi == Phi::relu) return x < Real(0) ? Vec<Real>{} : x;  // NaN stays
  return hyperbolic_tangent<Real>(x);
}

// The gradient g of phi as that of its argument, by its value y.
template <class Real>
ELMAN_INLINE Vec<Real> tanh_or_relu_back(Phi phi, Vec<Real> y, Vec<Real> g) {
  if (phi == Phi::relu) return y <= Real(0) ? Vec<Real>{} : g;
  return g * (Real(1) - y * y);
}

// h = phi(u + W h')
struct ElmanCell {
  static constexpr int gates = 1, first = 1, second = 0, saves = 0;
  static constexpr bool has_c = false, shared_last = false;
  template <class Real>
  static ELMAN_INLINE Vec<Real> forward(const Vec<Real>* a, Forward<Real>& f) {
    return tanh_or_relu<Real>(f.phi, a[0]);
  }
  template <class Real>
  static ELMAN_INLINE void backward(Backward<Real>& b) {
    b.g[0] = tanh_or_relu_back<Real>(b.phi, b.y, b.D);
    b.direct = Vec<Real>{};
  }
};

// h = phi(u + w * h')
struct IndRnnCell {
  static constexpr int gates = 1, first = 0, second = 0, saves = 0;
  static constexpr bool has_c = false, shared_last = false;
  template <class Real>
  static ELMAN_INLINE Vec<Real> forward(const Vec<Real>*, Forward<Real>& f) {
    return tanh_or_relu<Real>(f.phi, fma(f.extra, f.h, f.input(0)));
  }
  template <class Real>
  static ELMAN_INLINE void backward(Backward<Real>& b) {
    b.g[0] = tanh_or_relu_back<Real>(b.phi, b.y, b.D);
    b.direct = b.extra * b.g[0];
  }
};

// h = (1 - a) * h' + a * phi(u + W h')
struct RateCell {
  static constexpr int gates = 1, first = 1, second = 0, saves = 1;
  static constexpr bool has_c = false, shared_last = false;
  template <class Real>
  static ELMAN_INLINE Vec<Real> forward(const Vec<Real>* a, Forward<Real>& f) {
    const Vec<Real> rate = tanh_or_relu<Real>(f.phi, a[0]);
    f.leave(0, rate);
    return fma(f.extra, rate, (Real(1) - f.extra) * f.h);
  }
  template <class Real>
  static ELMAN_INLINE void backward(Backward<Real>& b) {
    b.g[0] = tanh_or_relu_back<Real>(b.phi, b.saved(0), b.extra * b.D);
    b.direct = (Real(1) - b.extra) * b.D;
  }
};

// r = s(u_r + W_r h'), z = s(u_z + W_z h'), m = W_n h' + c, n = tanh(u_n + r * m), h = (1 - z) * n + z * h'
struct GruCell {
  static constexpr int gates = 3, first = 3, second = 0, saves = 4;
  static constexpr bool has_c = false, shared_last = true;  // the sum m starts from c
  template <class Real>
  static ELMAN_INLINE Vec<Real> forward(const Vec<Real>* a, Forward<Real>& f) {
    const Vec<Real> r = logistic<Real>(a[0]), z = logistic<Real>(a[1]);
    const Vec<Real> n = hyperbolic_tangent<Real>(fma(r, a[2], f.input(2)));
    f.leave(0, r);
    f.leave(1, z);
    f.leave(2, n);
    f.leave(3, a[2]);
    return fma(z, f.h, (Real(1) - z) * n);
  }
  template <class Real>
  static ELMAN_INLINE void backward(Backward<Real>& b) {
    const Vec<Real> r = b.saved(0), z = b.saved(1), n = b.saved(2), m = b.saved(3);
    const Vec<Real> dn = b.D * (Real(1) - z) * (Real(1) - n * n);
    b.g[0] = dn * m * slope_of_logistic<Real>(r);
    b.g[1] = b.D * (b.h - n) * slope_of_logistic<Real>(z);
    b.g[2] = dn * r;
    b.gu_last = dn;
    b.direct = b.D * z;
  }
};

// i, f, o = s(u + W h'), g = tanh(u_g + W_g h'), c = f * c' + i * g, h = o * tanh(c); order i, f, g, o.
// Coupled: f = 1 - i, and the order is i, g, o. phi makes g: tanh, or the logistic function. With peepholes i and f add p * c', o adds p * c.
template <bool coupled>
struct LstmCell {
  static constexpr int gates = coupled ? 3 : 4, first = gates, second = 0, saves = gates + 1;
  static constexpr bool has_c = true, shared_last = false;
  static constexpr int at_f = coupled ? 0 : 1, at_g = gates - 2, at_o = gates - 1;
  template <class Real>
  static ELMAN_INLINE Vec<Real> forward(const Vec<Real>* a, Forward<Real>& b) {
    const bool sees = b.peephole;
    const Vec<Real> i = logistic<Real>(sees ? fma(b.peep(0), b.c, a[0]) : a[0]);
    const Vec<Real> f = coupled ? Real(1) - i : logistic<Real>(sees ? fma(b.peep(1), b.c, a[at_f]) : a[at_f]);
    const Vec<Real> g = b.phi == Phi::logistic ? logistic<Real>(a[at_g]) : hyperbolic_tangent<Real>(a[at_g]);
    b.c = fma(f, b.c, i * g);
    const Vec<Real> o = logistic<Real>(sees ? fma(b.peep(gates - 2), b.c, a[at_o]) : a[at_o]);
    b.leave(0, i);
    if (!coupled) b.leave(at_f, f);
    b.leave(at_g, g);
    b.leave(at_o, o);
    b.leave(gates, b.c);
    return b.normed ? o : o * hyperbolic_tangent<Real>(b.c);  // normed: the caller goes on from o and c
  }
  // b.tanh_c and b.dc_by_h are given if c is normalised on its way to h.
  template <class Real>
  static ELMAN_INLINE void backward(Backward<Real>& b) {
    const Vec<Real> i = b.saved(0), f = coupled ? Real(1) - i : b.saved(at_f), g = b.saved(at_g), o = b.saved(at_o);
    if (!b.normed) {
      b.tanh_c = hyperbolic_tangent<Real>(b.saved(gates));
      b.dc_by_h = b.D * o * (Real(1) - b.tanh_c * b.tanh_c);
    }
    b.g[at_o] = b.D * b.tanh_c * slope_of_logistic<Real>(o);
    Vec<Real> dc = b.dc_by_h + b.dc;
    if (b.peephole) dc = fma(b.peep(gates - 2), b.g[at_o], dc);
    const Vec<Real> slope = b.phi == Phi::logistic ? slope_of_logistic<Real>(g) : Real(1) - g * g;
    b.g[at_g] = dc * i * slope;
    b.g[0] = dc * (coupled ? g - b.c : g) * slope_of_logistic<Real>(i);
    if (!coupled) b.g[at_f] = dc * b.c * slope_of_logistic<Real>(f);
    b.dc = dc * f;
    if (b.peephole) {
      b.dc = fma(b.peep(0), b.g[0], b.dc);
      if (!coupled) b.dc = fma(b.peep(1), b.g[at_f], b.dc);
    }
    b.direct = Vec<Real>{};
  }
};

// r, z as in GruCell, q = r * h', n = tanh(u_n + W_n q), h = (1 - z) * n + z * h'
struct GruBeforeCell {
  static constexpr int gates = 3, first = 2, second = 1, saves = 3;
  static constexpr bool has_c = false, shared_last = false;
  template <class Real>
  static ELMAN_INLINE Vec<Real> between(const Vec<Real>* a, Forward<Real>& f) {
    const Vec<Real> r = logistic<Real>(a[0]);
    f.z = logistic<Real>(a[1]);
    f.leave(0, r);
    f.leave(1, f.z);
    return r * f.h;
  }
  template <class Real>
  static ELMAN_INLINE Vec<Real> forward(const Vec<Real>* a, Forward<Real>& f) {
    const Vec<Real> n = hyperbolic_tangent<Real>(a[0]);
    f.leave(2, n);
    return fma(f.z, f.h, (Real(1) - f.z) * n);
  }
  template <class Real>
  static ELMAN_INLINE void backward(Backward<Real>& b) {
    const Vec<Real> r = b.saved(0), z = b.saved(1), n = b.saved(2);
    b.g[2] = b.D * (Real(1) - z) * (Real(1) - n * n);
    b.g[1] = b.D * (b.h - n) * slope_of_logistic<Real>(z);
    b.direct = b.D * z;
    b.q = r * b.h;
  }
  template <class Real>
  static ELMAN_INLINE void backward(Backward<Real>& b, Vec<Real> dq) {
    const Vec<Real> r = b.saved(0);
    b.g[0] = dq * b.h * slope_of_logistic<Real>(r);
    b.direct = fma(dq, r, b.direct);
  }
};

// f = s(u_f + W_f h'), q = f * h', n = tanh(u_n + W_n q), h = (1 - f) * h' + f * n
struct MguCell {
  static constexpr int gates = 2, first = 1, second = 1, saves = 2;
  static constexpr bool has_c = false, shared_last = false;
  template <class Real>
  static ELMAN_INLINE Vec<Real> between(const Vec<Real>* a, Forward<Real>& f) {
    f.z = logistic<Real>(a[0]);
    f.leave(0, f.z);
    return f.z * f.h;
  }
  template <class Real>
  static ELMAN_INLINE Vec<Real> forward(const Vec<Real>* a, Forward<Real>& f) {
    const Vec<Real> n = hyperbolic_tangent<Real>(a[0]);
    f.leave(1, n);
    return fma(f.z, n, (Real(1) - f.z) * f.h);
  }
  template <class Real>
  static ELMAN_INLINE void backward(Backward<Real>& b) {
    const Vec<Real> f = b.saved(0), n = b.saved(1);
    b.g[1] = b.D * f * (Real(1) - n * n);
    b.direct = b.D * (Real(1) - f);
    b.q = f * b.h;
  }
  template <class Real>
  static ELMAN_INLINE void backward(Backward<Real>& b, Vec<Real> dq) {
    const Vec<Real> f = b.saved(0), n = b.saved(1);
    b.g[0] = fma(dq, b.h, b.D * (n - b.h)) * slope_of_logistic<Real>(f);
    b.direct = fma(dq, f, b.direct);
  }
};

// Every kind of gated loop: its name, its cell, its phi. The module exports the list (GATED_KINDS); nobody writes it again.
// clang-format off
#define ELMAN_GATED_KINDS(kind)                        \
  kind(elman_tanh, ElmanCell, tanh)                    \
  kind(elman_relu, ElmanCell, relu)                    \
  kind(indrnn_tanh, IndRnnCell, tanh)                  \
  kind(indrnn_relu, IndRnnCell, relu)                  \
  kind(rate_tanh, RateCell, tanh)                      \
  kind(rate_relu, RateCell, relu)                      \
  kind(gru, GruCell, tanh)                             \
  kind(gru_before, GruBeforeCell, tanh)                \
  kind(mgu, MguCell, tanh)                             \
  kind(lstm, LstmCell<false>, tanh)                    \
  kind(lstm_logistic, LstmCell<false>, logistic)       \
  kind(lstm_coupled, LstmCell<true>, tanh)             \
  kind(lstm_coupled_logistic, LstmCell<true>, logistic)
// clang-format on

enum class Kind : int {
#define ELMAN_KIND(name, Cell, phi) name,
  ELMAN_GATED_KINDS(ELMAN_KIND)
#undef ELMAN_KIND
};

// f(Cell{}, phi) for a kind.
template <class F>
ELMAN_INLINE void with_cell(int kind, const F& f) {
  switch (Kind(kind)) {
#define ELMAN_KIND(name, Cell, phi) \
  case Kind::name: return f(Cell{}, Phi::phi);
    ELMAN_GATED_KINDS(ELMAN_KIND)
#undef ELMAN_KIND
  }
  throw std::invalid_argument("native kernel: there is no kind of gated cell with the number " + std::to_string(kind) + ".");
}

// Whether a cell can have attention inside its loop (attended.cpp): one product, and no weight per unit but the GRU's bias.
template <class Cell>
constexpr bool attends = Cell::second == 0 && Cell::first > 0 && (Cell::shared_last || Cell::has_c || Cell::saves == 0);

template <class Cell>
constexpr GatedKind described(const char* name, Kind kind) {
  return {name, int(kind), Cell::gates, Cell::saves, Cell::has_c ? 2 : 1, Cell::first + Cell::second > 0, attends<Cell>};
}

template <class Cell, class Real>
GatedLayout gated_layout(const GatedWeights<Real>& w) {
  const auto& o = w.options;
  return {described<Cell>("", Kind(w.kind)), w.H, w.R, bool(o.gain), bool(o.gain_U), bool(o.gain_c), sizeof(Real)};
}

}  // namespace elman::ELMAN_NS
