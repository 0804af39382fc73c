// The cells of the gated loops: what happens to one block of units of one row at one step, forward and backward.
//
// Letters: s is the logistic function, a prime is the previous step, q is what a second product reads.
// `first` gates are summed over h', then `second` gates over q; a cell of one product has second = 0.
// D is the gradient of h; g[i] that of the sum of gate i; `direct` is what of D reaches h' without a product.
// Gate i's sum starts from u, so that g[i] is also the gradient of u, but where shared_last says that the last sum starts
// from a bias and u comes in later: then `apart` is the last gradient of u.
#pragma once

#include "math.h"
#include "simd.h"

namespace elman::ELMAN_NS {

template <class T>
struct Forward {
  const T* u;        // gate i of this block is at u + i * lanes
  Vec<T> extra;      // a weight per unit: the bias in the GRU's candidate, the leak of the rate cell, IndRNN's w
  Vec<T> h, c;       // the state before; c becomes the state after
  Vec<T> z;          // kept from the first product to the second
  bool relu;         // which phi
  bool normed;       // LSTM: c is normalised on its way to h, which the caller does
  const T* peephole; // LSTM: weight i is at peephole + i * stride; null without
  T* save;           // value i goes to save + i * stride; null in inference
  int64_t stride;

  ELMAN_INLINE Vec<T> input(int i) const { return load<Vec<T>>(u + i * lanes<T>); }
  ELMAN_INLINE Vec<T> hole(int i) const { return load<Vec<T>>(peephole + i * stride); }
  ELMAN_INLINE void keep(int i, Vec<T> v) const {
    if (save) store(save + i * stride, v);
  }
};

template <class T>
struct Backward {
  const T* save;
  int64_t stride;
  bool relu, normed;
  const T* peephole;
  Vec<T> extra;
  Vec<T> h, y, c;          // the state before, the output, LSTM's cell before
  Vec<T> D, dc;            // gradients of h and of LSTM's c; dc becomes that of c'
  Vec<T> tanh_c, through;  // LSTM's
  Vec<T> g[4], direct, apart, q;

  ELMAN_INLINE Vec<T> hole(int i) const { return load<Vec<T>>(peephole + i * stride); }
  ELMAN_INLINE Vec<T> kept(int i) const { return load<Vec<T>>(save + i * stride); }
};

template <class T>
ELMAN_INLINE Vec<T> slope_of_logistic(Vec<T> s) {
  return s * (T(1) - s);
}

// phi is tanh or relu. Which one is a branch that is always predicted, not one more copy of the loop to compile.
template <class T>
ELMAN_INLINE Vec<T> phi(bool relu, Vec<T> x) {
  if (relu) return x < T(0) ? Vec<T>{} : x;  // NaN stays
  return hyperbolic_tangent<T>(x);
}

// The gradient g of phi as that of its argument, by its value y.
template <class T>
ELMAN_INLINE Vec<T> phi_back(bool relu, Vec<T> y, Vec<T> g) {
  if (relu) return y <= T(0) ? Vec<T>{} : g;
  return g * (T(1) - y * y);
}

// h = phi(u + W h')
struct ElmanCell {
  static constexpr int gates = 1, first = 1, second = 0, saves = 0;
  static constexpr bool has_c = false, shared_last = false;
  template <class T>
  static ELMAN_INLINE Vec<T> forward(const Vec<T>* a, Forward<T>& f) {
    return phi<T>(f.relu, a[0]);
  }
  template <class T>
  static ELMAN_INLINE void backward(Backward<T>& b) {
    b.g[0] = phi_back<T>(b.relu, b.y, b.D);
    b.direct = Vec<T>{};
  }
};

// h = phi(u + w * h')
struct IndRnnCell {
  static constexpr int gates = 1, first = 0, second = 0, saves = 0;
  static constexpr bool has_c = false, shared_last = false;
  template <class T>
  static ELMAN_INLINE Vec<T> forward(const Vec<T>*, Forward<T>& f) {
    return phi<T>(f.relu, fma(f.extra, f.h, f.input(0)));
  }
  template <class T>
  static ELMAN_INLINE void backward(Backward<T>& b) {
    b.g[0] = phi_back<T>(b.relu, b.y, b.D);
    b.direct = b.extra * b.g[0];
  }
};

// h = (1 - a) * h' + a * phi(u + W h')
struct RateCell {
  static constexpr int gates = 1, first = 1, second = 0, saves = 1;
  static constexpr bool has_c = false, shared_last = false;
  template <class T>
  static ELMAN_INLINE Vec<T> forward(const Vec<T>* a, Forward<T>& f) {
    const Vec<T> rate = phi<T>(f.relu, a[0]);
    f.keep(0, rate);
    return fma(f.extra, rate, (T(1) - f.extra) * f.h);
  }
  template <class T>
  static ELMAN_INLINE void backward(Backward<T>& b) {
    b.g[0] = phi_back<T>(b.relu, b.kept(0), b.extra * b.D);
    b.direct = (T(1) - b.extra) * b.D;
  }
};

// r = s(u_r + W_r h'), z = s(u_z + W_z h'), m = W_n h' + c, n = tanh(u_n + r * m), h = (1 - z) * n + z * h'
struct GruCell {
  static constexpr int gates = 3, first = 3, second = 0, saves = 4;
  static constexpr bool has_c = false, shared_last = true;  // the sum m starts from c
  template <class T>
  static ELMAN_INLINE Vec<T> forward(const Vec<T>* a, Forward<T>& f) {
    const Vec<T> r = logistic<T>(a[0]), z = logistic<T>(a[1]);
    const Vec<T> n = hyperbolic_tangent<T>(fma(r, a[2], f.input(2)));
    f.keep(0, r);
    f.keep(1, z);
    f.keep(2, n);
    f.keep(3, a[2]);
    return fma(z, f.h, (T(1) - z) * n);
  }
  template <class T>
  static ELMAN_INLINE void backward(Backward<T>& b) {
    const Vec<T> r = b.kept(0), z = b.kept(1), n = b.kept(2), m = b.kept(3);
    const Vec<T> dn = b.D * (T(1) - z) * (T(1) - n * n);
    b.g[0] = dn * m * slope_of_logistic<T>(r);
    b.g[1] = b.D * (b.h - n) * slope_of_logistic<T>(z);
    b.g[2] = dn * r;
    b.apart = dn;
    b.direct = b.D * z;
  }
};

// i, f, o = s(u + W h'), g = tanh(u_g + W_g h'), c = f * c' + i * g, h = o * tanh(c); order i, f, g, o.
// Coupled: f = 1 - i, and the order is i, g, o. `relu` stands for a logistic g. With peepholes i and f add p * c', o adds p * c.
template <bool coupled>
struct LstmCell {
  static constexpr int gates = coupled ? 3 : 4, first = gates, second = 0, saves = gates + 1;
  static constexpr bool has_c = true, shared_last = false;
  static constexpr int at_f = coupled ? 0 : 1, at_g = gates - 2, at_o = gates - 1;
  template <class T>
  static ELMAN_INLINE Vec<T> forward(const Vec<T>* a, Forward<T>& b) {
    const bool sees = b.peephole;
    const Vec<T> i = logistic<T>(sees ? fma(b.hole(0), b.c, a[0]) : a[0]);
    const Vec<T> f = coupled ? T(1) - i : logistic<T>(sees ? fma(b.hole(1), b.c, a[at_f]) : a[at_f]);
    const Vec<T> g = b.relu ? logistic<T>(a[at_g]) : hyperbolic_tangent<T>(a[at_g]);
    b.c = fma(f, b.c, i * g);
    const Vec<T> o = logistic<T>(sees ? fma(b.hole(gates - 2), b.c, a[at_o]) : a[at_o]);
    b.keep(0, i);
    if (!coupled) b.keep(at_f, f);
    b.keep(at_g, g);
    b.keep(at_o, o);
    b.keep(gates, b.c);
    return b.normed ? o : o * hyperbolic_tangent<T>(b.c);  // normed: the caller goes on from o and c
  }
  // b.tanh_c and, of the gradient of c, what comes through it (b.through) are given if the cell is normed on its way to h.
  template <class T>
  static ELMAN_INLINE void backward(Backward<T>& b) {
    const Vec<T> i = b.kept(0), f = coupled ? T(1) - i : b.kept(at_f), g = b.kept(at_g), o = b.kept(at_o);
    if (!b.normed) {
      b.tanh_c = hyperbolic_tangent<T>(b.kept(gates));
      b.through = b.D * o * (T(1) - b.tanh_c * b.tanh_c);
    }
    b.g[at_o] = b.D * b.tanh_c * slope_of_logistic<T>(o);
    Vec<T> dc = b.through + b.dc;
    if (b.peephole) dc = fma(b.hole(gates - 2), b.g[at_o], dc);
    const Vec<T> slope = b.relu ? slope_of_logistic<T>(g) : T(1) - g * g;
    b.g[at_g] = dc * i * slope;
    b.g[0] = dc * (coupled ? g - b.c : g) * slope_of_logistic<T>(i);
    if (!coupled) b.g[at_f] = dc * b.c * slope_of_logistic<T>(f);
    b.dc = dc * f;
    if (b.peephole) {
      b.dc = fma(b.hole(0), b.g[0], b.dc);
      if (!coupled) b.dc = fma(b.hole(1), b.g[at_f], b.dc);
    }
    b.direct = Vec<T>{};
  }
};

// r, z as in GruCell, q = r * h', n = tanh(u_n + W_n q), h = (1 - z) * n + z * h'
struct GruBeforeCell {
  static constexpr int gates = 3, first = 2, second = 1, saves = 3;
  static constexpr bool has_c = false, shared_last = false;
  template <class T>
  static ELMAN_INLINE Vec<T> between(const Vec<T>* a, Forward<T>& f) {
    const Vec<T> r = logistic<T>(a[0]);
    f.z = logistic<T>(a[1]);
    f.keep(0, r);
    f.keep(1, f.z);
    return r * f.h;
  }
  template <class T>
  static ELMAN_INLINE Vec<T> forward(const Vec<T>* a, Forward<T>& f) {
    const Vec<T> n = hyperbolic_tangent<T>(a[0]);
    f.keep(2, n);
    return fma(f.z, f.h, (T(1) - f.z) * n);
  }
  template <class T>
  static ELMAN_INLINE void backward(Backward<T>& b) {
    const Vec<T> r = b.kept(0), z = b.kept(1), n = b.kept(2);
    b.g[2] = b.D * (T(1) - z) * (T(1) - n * n);
    b.g[1] = b.D * (b.h - n) * slope_of_logistic<T>(z);
    b.direct = b.D * z;
    b.q = r * b.h;
  }
  template <class T>
  static ELMAN_INLINE void backward(Backward<T>& b, Vec<T> dq) {
    const Vec<T> r = b.kept(0);
    b.g[0] = dq * b.h * slope_of_logistic<T>(r);
    b.direct = fma(dq, r, b.direct);
  }
};

// f = s(u_f + W_f h'), q = f * h', n = tanh(u_n + W_n q), h = (1 - f) * h' + f * n
struct MguCell {
  static constexpr int gates = 2, first = 1, second = 1, saves = 2;
  static constexpr bool has_c = false, shared_last = false;
  template <class T>
  static ELMAN_INLINE Vec<T> between(const Vec<T>* a, Forward<T>& f) {
    f.z = logistic<T>(a[0]);
    f.keep(0, f.z);
    return f.z * f.h;
  }
  template <class T>
  static ELMAN_INLINE Vec<T> forward(const Vec<T>* a, Forward<T>& f) {
    const Vec<T> n = hyperbolic_tangent<T>(a[0]);
    f.keep(1, n);
    return fma(f.z, n, (T(1) - f.z) * f.h);
  }
  template <class T>
  static ELMAN_INLINE void backward(Backward<T>& b) {
    const Vec<T> f = b.kept(0), n = b.kept(1);
    b.g[1] = b.D * f * (T(1) - n * n);
    b.direct = b.D * (T(1) - f);
    b.q = f * b.h;
  }
  template <class T>
  static ELMAN_INLINE void backward(Backward<T>& b, Vec<T> dq) {
    const Vec<T> f = b.kept(0), n = b.kept(1);
    b.g[0] = fma(dq, b.h, b.D * (n - b.h)) * slope_of_logistic<T>(f);
    b.direct = fma(dq, f, b.direct);
  }
};

// f(Cell{}, relu) for a kind: the order is that of KINDS in elman/kernels/native/gated.py.
template <class F>
ELMAN_INLINE void each_cell(int kind, const F& f) {
  switch (kind) {
    case 0:
    case 1: return f(ElmanCell{}, kind == 1);
    case 2:
    case 3: return f(IndRnnCell{}, kind == 3);
    case 4:
    case 5: return f(RateCell{}, kind == 5);
    case 6: return f(GruCell{}, false);
    case 7: return f(GruBeforeCell{}, false);
    case 8: return f(MguCell{}, false);
    case 9:
    case 10: return f(LstmCell<false>{}, kind == 10);
    default: return f(LstmCell<true>{}, kind == 12);
  }
}

}  // namespace elman::ELMAN_NS
