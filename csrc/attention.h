// Attention of one row to its memory, forward and backward: e[j] = query . keys[j], or v . tanh(query + keys[j]); the weights are
// the softmax of e over the length of the row's memory, the context the weighted sum of its values.
//
// Every sum runs over the row's own memory, in one order: neither the other rows nor the padding change a bit. The tangents are
// computed again in the backward pass, which costs less than to write and read (T, S, A) of them.
#pragma once

#include "buffers.h"
#include "kernels.h"
#include "math.h"
#include "product.h"

namespace elman::ELMAN_NS {

template <class Real>
class Attention {
  static constexpr int L = lanes<Real>;
  using V = Vec<Real>;

 public:
  explicit Attention(const Memory<Real>& memory) : m_(memory) {}

  // query (A) -> weights (S), context (M)
  void forward(int64_t row, const Real* query, Real* weights, Real* context) const {
    const int64_t n = m_.lengths[row];
    const Real *keys = m_.keys + row * m_.S * m_.A, *values = m_.values + row * m_.S * m_.M;
    Real top = -std::numeric_limits<Real>::infinity();
    for (int64_t j = 0; j < n; ++j) {
      weights[j] = score(query, keys + j * m_.A);
      top = weights[j] > top ? weights[j] : top;
    }
    Real sum = 0;
    for (int64_t j = 0; j < n; j += L)
      store_some(weights + j, exponential<Real>(load_some(weights + j, n - j) - splat(top)), n - j);
    for (int64_t j = 0; j < n; ++j) sum += weights[j];
    for (int64_t j = 0; j < n; ++j) weights[j] /= sum;
    std::fill(weights + n, weights + m_.S, Real(0));
    for (int64_t i = 0; i < m_.M; i += L) {
      V total{};
      for (int64_t j = 0; j < n; ++j) total = fma(splat(weights[j]), load_some(values + j * m_.M + i, m_.M - i), total);
      store_some(context + i, total, m_.M - i);
    }
  }

  // What arrives at the context (M), and at the weights (S) or null: gquery (A) is written, the others are added to. `room` (S).
  void backward(int64_t row, const Real* query, const Real* weights, const Real* gcontext, const Real* gweights, Real* gquery,
                const AttendGradients<Real>& to, Real* room) const {
    const int64_t n = m_.lengths[row];
    const Real *keys = m_.keys + row * m_.S * m_.A, *values = m_.values + row * m_.S * m_.M;
    Real *gkeys = to.gkeys + row * m_.S * m_.A, *gvalues = to.gvalues + row * m_.S * m_.M;
    Real shared = 0;
    for (int64_t j = 0; j < n; ++j) {
      V total{};
      for (int64_t i = 0; i < m_.M; i += L) {
        const V g = load_some(gcontext + i, m_.M - i);
        total = fma(g, load_some(values + j * m_.M + i, m_.M - i), total);
        Real* gv = gvalues + j * m_.M + i;
        store_some(gv, fma(splat(weights[j]), g, load_some(gv, m_.M - i)), m_.M - i);
      }
      room[j] = sum_lanes<Real>(total) + (gweights ? gweights[j] : Real(0));
      shared = fma(weights[j], room[j], shared);
    }
    for (int64_t j = 0; j < n; ++j) room[j] = weights[j] * (room[j] - shared);
    for (int64_t i = 0; i < m_.A; i += L) {
      const int64_t left = m_.A - i;
      const V q = load_some(query + i, left);
      V total{};
      if (m_.v) total = additive(n, left, q, load_some(m_.v + i, left), keys + i, room, gkeys + i, to.gv + row * m_.A + i);
      else
        for (int64_t j = 0; j < n; ++j) {
          total = fma(splat(room[j]), load_some(keys + j * m_.A + i, left), total);
          Real* gk = gkeys + j * m_.A + i;
          store_some(gk, fma(splat(room[j]), q, load_some(gk, left)), left);
        }
      store_some(gquery + i, total, left);
    }
  }

 private:
  ELMAN_INLINE Real score(const Real* query, const Real* key) const {
    V total{};
    for (int64_t i = 0; i < m_.A; i += L) {
      const int64_t left = m_.A - i;
      const V q = load_some(query + i, left), k = load_some(key + i, left);
      total = m_.v ? fma(load_some(m_.v + i, left), hyperbolic_tangent<Real>(q + k), total) : fma(q, k, total);
    }
    return sum_lanes<Real>(total);
  }

  // One vector of the hidden layer, through all of the memory: the gradient of the query there.
  ELMAN_INLINE V additive(int64_t n, int64_t left, V q, V v, const Real* keys, const Real* ge, Real* gkeys, Real* gv) const {
    V total{}, by_v = load_some(gv, left);
    for (int64_t j = 0; j < n; ++j) {
      const V tangent = hyperbolic_tangent<Real>(q + load_some(keys + j * m_.A, left));
      const V g = splat(ge[j]) * v * (Real(1) - tangent * tangent);
      Real* gk = gkeys + j * m_.A;
      store_some(gk, V(load_some(gk, left) + g), left);
      total = total + g;
      by_v = fma(splat(ge[j]), tangent, by_v);
    }
    store_some(gv, by_v, left);
    return total;
  }

  Memory<Real> m_;
};

}  // namespace elman::ELMAN_NS
