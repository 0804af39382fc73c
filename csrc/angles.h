// Sine and cosine of any number, within 3 ulp, in double whatever Real is and without a fused operation: a float is rounded once,
// and all instruction sets have the same bits. export/c/text/runtime.c has the same steps in C.
//
//   |x| = n pi/2 + r,  |r| <= pi/4,  r = high + low
//   sin r = r + r^3 p(r^2),  cos r = 1 - r^2/2 + r^4 q(r^2)
//
// p and q interpolate at the Chebyshev nodes of that interval (errors 2e-17 and 1e-18). NaN stays NaN; infinities become NaN.
#pragma once
#include "math.h"

namespace elman::ELMAN_NS {

struct Turned {
  Vec<double> high, low;
  Int<double> quarters;  // n, of which the two last bits count
};

constexpr double pi_half[] = {0x1.921fb544p+0, 0x1.0b4611a6p-34, 0x1.3198a2ep-69, 0x1.b839a252049c1p-104};  // 33 bits each
constexpr double near_angle = 1e6;  // n of what is less has 20 bits, and n times 33 bits is exact

// a - b and what rounding has taken of it, which is added to `lost`.
template <class V> ELMAN_INLINE V minus(V a, V b, V& lost) {
  const V d = a - b, back = d - a;
  lost = lost + ((a - (d - back)) - (b + back));
  return d;
}

// The upper 64 bits of a product.
inline uint64_t upper_product(uint64_t a, uint64_t b) {
  const uint64_t low = 0xFFFFFFFF, a0 = a & low, a1 = a >> 32, b0 = b & low, b1 = b >> 32;
  const uint64_t middle = a1 * b0 + (a0 * b0 >> 32);
  return a1 * b1 + (middle >> 32) + ((a0 * b1 + (middle & low)) >> 32);
}

// x >= near_angle, finite: x / (2 pi) without its whole part, of 192 bits of 2 / pi from where they count (Payne and Hanek, 1983).
inline void turn_far(double x, double* high, double* low, int64_t* quarters) {
  // clang-format off
  static constexpr uint64_t two_over_pi[] = {
    0x0000000000000000, 0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0, 0x06492EEA09D1921C, 0xFE1DEB1CB129A73E, 0xE88235F52EBB4484, 0xE99C7026B45F7E41,
    0x3991D639835339F4, 0x9C845F8BBDF9283B, 0x1FF897FFDE05980F, 0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7,
    0x4F463F669E5FEA2D, 0x7527BAC7EBE5F17B, 0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB,
  };
  // clang-format on
  uint64_t bits, word[3];
  std::memcpy(&bits, &x, sizeof bits);
  const uint64_t m = (bits & 0xFFFFFFFFFFFFF) | 0x10000000000000;
  const int at = int(bits >> 52) - 1075 + 62;  // x = m 2^(at - 62): before that bit whole turns are told from parts
  for (int i = 0; i < 3; ++i) {
    const uint64_t *w = two_over_pi + at / 64 + i, shift = at % 64;
    word[i] = shift ? w[0] << shift | w[1] >> (64 - shift) : w[0];
  }
  const uint64_t middle = m * word[1] + upper_product(m, word[2]);
  const uint64_t top = m * word[0] + upper_product(m, word[1]) + (middle < m * word[1]);
  const uint64_t n = (top + (uint64_t(1) << 61)) >> 62;
  const int64_t rest = int64_t(top - (n << 62));  // of 2^64 to a turn, and `middle` behind it
  const double first = double(rest), tail = double(rest - int64_t(first)) + double(middle) * 0x1p-64;
  const double sum = first + tail, lost = (first - sum) + tail;
  std::memcpy(&bits, &sum, sizeof bits);
  bits &= ~uint64_t(0x7FFFFFF);  // 26 bits, and 26 of pi/2: their product is exact
  double a;
  std::memcpy(&a, &bits, sizeof a);
  constexpr double c = 0x1.921fb5p-62, d = 0x1.110b4611a6263p-88;
  const double small = a * d + ((sum - a) + lost) * (c + d);
  *high = a * c + small;
  *low = (a * c - *high) + small;
  *quarters = int64_t(n);
}

ELMAN_INLINE Turned turn_back(Vec<double> x) {
  const Vec<double> shift = splat<double>(ExpOf<double>::shift), shifted = x * 0.63661977236758138 + shift, n = shifted - shift;
  Vec<double> lost{};
  Vec<double> r = x - n * pi_half[0];  // exact, as both are multiples of a number with 53 bits
  r = minus(r, n * pi_half[1], lost);
  r = minus(r, n * pi_half[2], lost);
  lost = lost - n * pi_half[3];
  const Vec<double> high = r + lost;
  Turned turned{high, (r - high) + lost, (Int<double>)shifted - (Int<double>)shift};
  const Int<double> far = (x >= near_angle) & (x < std::numeric_limits<double>::infinity());
  int64_t any = 0;
  for (int l = 0; l < lanes<double>; ++l) any |= far[l];
  for (int l = 0; any && l < lanes<double>; ++l)
    if (far[l]) {
      double upper, lower;
      int64_t quarters;
      turn_far(x[l], &upper, &lower, &quarters);
      turned.high[l] = upper, turned.low[l] = lower, turned.quarters[l] = quarters;
    }
  return turned;
}

// sin(|x| + ahead pi/2)
template <int ahead> ELMAN_INLINE Vec<double> sine_of_size(Vec<double> x) {
  const Turned turned = turn_back((Vec<double>)((Int<double>)x & ~sign_bit<double>()));
  const Vec<double> r = turned.high, u = r * r, half = u * 0.5;
  Vec<double> p = splat<double>(1.591810123027412e-10), q = splat<double>(-1.1382614868556325e-11);
  for (const double c :
       {-2.5051131455427946e-08, 2.755731610068303e-06, -0.0001984126983675497, 0.008333333333330946, -0.16666666666666666})
    p = p * u + c;
  for (const double c :
       {2.0876146024689747e-09, -2.7557317270560326e-07, 2.4801587298763433e-05, -0.0013888888888887395, 0.041666666666666664})
    q = q * u + c;
  const Vec<double> sine = r + (r * u * p + turned.low * (1.0 - half)), upper = 1.0 - half;
  const Vec<double> cosine = upper + (((1.0 - upper) - half) + (u * u * q - r * turned.low));
  const Int<double> quarters = turned.quarters + ahead;
  const Vec<double> y = (quarters & 1) != 0 ? cosine : sine;
  return (quarters & 2) != 0 ? -y : y;
}

ELMAN_INLINE Vec<double> sine_in_double(Vec<double> x) {
  return (Vec<double>)((Int<double>)sine_of_size<0>(x) ^ ((Int<double>)x & sign_bit<double>()));
}
ELMAN_INLINE Vec<double> cosine_in_double(Vec<double> x) { return sine_of_size<1>(x); }

// f of each half of the lanes, in double.
template <class F> ELMAN_INLINE Vec<float> by_halves(Vec<float> x, const F& f) {
  double wide[lanes<float>];
  for (int l = 0; l < lanes<float>; ++l) wide[l] = x[l];
  for (int l = 0; l < lanes<float>; l += lanes<double>) store(wide + l, f(load<Vec<double>>(wide + l)));
  for (int l = 0; l < lanes<float>; ++l) x[l] = float(wide[l]);
  return x;
}

template <class Real> ELMAN_INLINE Vec<Real> sine(Vec<Real> x) {
  if constexpr (sizeof(Real) == 8) return sine_in_double(x);
  else return by_halves(x, [](Vec<double> v) { return sine_in_double(v); });
}

template <class Real> ELMAN_INLINE Vec<Real> cosine(Vec<Real> x) {
  if constexpr (sizeof(Real) == 8) return cosine_in_double(x);
  else return by_halves(x, [](Vec<double> v) { return cosine_in_double(v); });
}

}  // namespace elman::ELMAN_NS
