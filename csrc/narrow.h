// Numbers of fewer bits. Weights as they are stored: as wide as the sums, or narrower. They are widened on their way into a register, and all sums are
// of Real. A number of 8 bits counts in units of a scale that `group` numbers of a column share, one group behind the other.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "buffers.h"
#include "math.h"

namespace elman::ELMAN_NS {

struct Bfloat16 {
  uint16_t bits;  // the upper half of a float
};

constexpr int64_t group = 64;

template <class Weight>
constexpr bool has_scales = std::is_same_v<Weight, int8_t>;

// Numbers of a column that lie side by side, [k / pair][lanes][pair]: two of 16 bits make one of 32, of which a shift and a mask
// give both as floats, while to widen each by itself would take AVX2 as long as to read it whole.
template <class Weight>
constexpr int64_t pair = std::is_same_v<Weight, Bfloat16> ? 2 : 1;

// How deep a panel of depth K is, in whole pairs.
template <class Weight>
constexpr int64_t packed_depth(int64_t K) {
  return (K + pair<Weight> - 1) / pair<Weight> * pair<Weight>;
}

// lanes<Real> weights in a vector of Real.
ELMAN_INLINE Vec<float> widen(const float* p) { return load<Vec<float>>(p); }
ELMAN_INLINE Vec<double> widen(const double* p) { return load<Vec<double>>(p); }
// By instructions of the set where the compiler's own conversion of vectors would go number by number.
#if defined(__AVX512F__)
ELMAN_INLINE Vec<float> widen(const int8_t* p) {
  return (Vec<float>)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load<__m128i>(p)));
}
#elif defined(__AVX2__)
ELMAN_INLINE Vec<float> widen(const int8_t* p) {
  return (Vec<float>)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}
#else
ELMAN_INLINE Vec<float> widen(const int8_t* p) {
  Vec<float> v;
  for (int l = 0; l < lanes<float>; ++l) v[l] = float(p[l]);
  return v;
}
#endif

// The first and the second of pairs.
ELMAN_INLINE Vec<float> first_of(Int<float> pairs) { return (Vec<float>)(pairs << 16); }
ELMAN_INLINE Vec<float> second_of(Int<float> pairs) { return (Vec<float>)(pairs & int32_t(0xFFFF0000)); }

// The nearest; of two, the one whose last bit is zero.
inline Bfloat16 to_bfloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const bool nan = (bits & 0x7FFFFFFF) > 0x7F800000;  // in whole numbers, so that a loop over this becomes one of vectors
  return {uint16_t(nan ? bits >> 16 | 1 : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}

// n numbers in 16 bits each, and back.
template <class Real>
void narrow(const Real* __restrict from, int64_t n, uint16_t* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = to_bfloat16(float(from[i])).bits;
}
template <class Real>
void widen(const uint16_t* __restrict from, int64_t n, Real* __restrict to) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = uint32_t(from[i]) << 16;
    float x;
    std::memcpy(&x, &bits, sizeof x);
    to[i] = x;
  }
}

// The scale of `count` numbers, `step` apart: the largest of them becomes 127.
inline float scale_of(const float* w, int64_t count, int64_t step) {
  float most = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(w[i * step])) return NAN;  // which the sums shall show
    most = std::max(most, std::abs(w[i * step]));
  }
  return most / 127;
}

// A scale too small for all its bits would make more than 127 of the largest.
inline int8_t to_int8(float x, float scale) {
  return scale > 0 ? int8_t(std::clamp(std::nearbyint(x / scale), -127.0f, 127.0f)) : int8_t(0);
}

}  // namespace elman::ELMAN_NS
