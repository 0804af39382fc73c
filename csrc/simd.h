// One vector type per instruction set, and the few operations kernels are written in.
//
// Vec<Real> holds lanes<Real> elements. All arithmetic is elementwise (+ - * / and comparisons are the compiler's vector
// extensions), so a lane's bits depend on that lane alone, and a scalar tail gives the same bits as a full vector.
// Only fma may fuse: it is one rounding where the instruction set has it, two elsewhere, in vectors and scalars alike.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define ELMAN_INLINE inline __attribute__((always_inline))

namespace elman::ELMAN_NS {

#if defined(__AVX512F__)
constexpr int vector_bytes = 64;
#elif defined(__AVX2__)
constexpr int vector_bytes = 32;
#else
constexpr int vector_bytes = 16;
#endif

template <class Real>
struct VecOf;
template <>
struct VecOf<float> {
  typedef float type __attribute__((vector_size(vector_bytes)));
};
template <>
struct VecOf<double> {
  typedef double type __attribute__((vector_size(vector_bytes)));
};

template <class Real>
using Vec = typename VecOf<Real>::type;
template <class Real>
constexpr int lanes = vector_bytes / sizeof(Real);

// load<V>(p): V is Vec<Real> or Real itself, so that one template serves full vectors and the scalar tail.
template <class V, class Real>
ELMAN_INLINE V load(const Real* p) {
  V v;
  std::memcpy(&v, p, sizeof(V));
  return v;
}

template <class V, class Real>
ELMAN_INLINE void store(Real* p, V v) {
  std::memcpy(p, &v, sizeof(V));
}

// Past the caches, to an address that is a multiple of the vector's size: for what nobody reads soon. Other threads see it after
// `finish_streams`. A scalar is stored as any other.
template <class V, class Real>
ELMAN_INLINE void stream(Real* p, V v) {
#if defined(__SSE2__)
  if constexpr (sizeof(V) == vector_bytes) {
#if defined(__AVX512F__)
    return _mm512_stream_si512(reinterpret_cast<__m512i*>(p), __m512i(v));
#elif defined(__AVX2__)
    return _mm256_stream_si256(reinterpret_cast<__m256i*>(p), __m256i(v));
#else
    return _mm_stream_si128(reinterpret_cast<__m128i*>(p), __m128i(v));
#endif
  }
#endif
  store(p, v);
}
ELMAN_INLINE void finish_streams() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

template <class Real>
ELMAN_INLINE Vec<Real> splat(Real x) {
  return x - Vec<Real>{};
}

// [v[I]...]
template <int... I, class V>
ELMAN_INLINE V shuffle(V v) {
#if __has_builtin(__builtin_shufflevector)
  return __builtin_shufflevector(v, v, I...);
#else
  return V{v[I]...};
#endif
}

// The sum of all lanes: of halves, of their halves, and so on.
template <int step, class V, int... I>
ELMAN_INLINE V fold_once(V v, std::integer_sequence<int, I...>) {
  return v + shuffle<(I ^ step)...>(v);
}
template <int step, class V, int... I>
ELMAN_INLINE V fold(V v, std::integer_sequence<int, I...> lanes) {
  if constexpr (step == 0) return v;
  else return fold<step / 2>(fold_once<step>(v, lanes), lanes);
}
template <class Real>
ELMAN_INLINE Real sum_lanes(Vec<Real> v) {
  return fold<lanes<Real> / 2>(v, std::make_integer_sequence<int, lanes<Real>>{})[0];
}

// Lanes i, i + 4, i + 8, ... added up in the same way, in lane i of the first four.
template <class Real>
ELMAN_INLINE Vec<Real> fold_to_four(Vec<Real> v) {
  if constexpr (lanes<Real> == 16) v = fold_once<8>(v, std::make_integer_sequence<int, lanes<Real>>{});
  if constexpr (lanes<Real> >= 8) v = fold_once<4>(v, std::make_integer_sequence<int, lanes<Real>>{});
  return v;
}

// The sum of the lanes of a vector in memory, from the first to the last.
template <class Real>
ELMAN_INLINE Real sum_lanes_in_order(const Real* v) {
  Real sum = v[0];
  for (int l = 1; l < lanes<Real>; ++l) sum += v[l];
  return sum;
}

// [a[first], b[first], a[first + 1], b[first + 1], ...]
template <int first, class V, int... I>
ELMAN_INLINE V interleave(V a, V b, std::integer_sequence<int, I...>) {
#if __has_builtin(__builtin_shufflevector)
  return __builtin_shufflevector(a, b, (first + I / 2 + I % 2 * int(sizeof...(I)))...);
#else
  return V{(I % 2 ? b : a)[first + I / 2]...};
#endif
}
template <int first, class V>
ELMAN_INLINE V interleave(V a, V b) {
  return interleave<first>(a, b, std::make_integer_sequence<int, int(sizeof(V) / sizeof(a[0]))>{});
}

// The first `count` lanes of a vector, fewer than all of them; the others are zero, or stay as they are in memory.
#if defined(__AVX512F__)
ELMAN_INLINE Vec<float> load_first(const float* p, int count) {
  return (Vec<float>)_mm512_maskz_loadu_ps(__mmask16((1u << count) - 1), p);
}
ELMAN_INLINE Vec<double> load_first(const double* p, int count) {
  return (Vec<double>)_mm512_maskz_loadu_pd(__mmask8((1u << count) - 1), p);
}
ELMAN_INLINE void store_first(float* p, Vec<float> v, int count) {
  _mm512_mask_storeu_ps(p, __mmask16((1u << count) - 1), (__m512)v);
}
ELMAN_INLINE void store_first(double* p, Vec<double> v, int count) {
  _mm512_mask_storeu_pd(p, __mmask8((1u << count) - 1), (__m512d)v);
}
#endif

// a * b + c
#if defined(__AVX512F__)
ELMAN_INLINE Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) {
  return (Vec<float>)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
ELMAN_INLINE Vec<double> fma(Vec<double> a, Vec<double> b, Vec<double> c) {
  return (Vec<double>)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
}
#elif defined(__FMA__)
ELMAN_INLINE Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) {
  return (Vec<float>)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
ELMAN_INLINE Vec<double> fma(Vec<double> a, Vec<double> b, Vec<double> c) {
  return (Vec<double>)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
}
#elif defined(__aarch64__)
ELMAN_INLINE Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) {
  return (Vec<float>)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
ELMAN_INLINE Vec<double> fma(Vec<double> a, Vec<double> b, Vec<double> c) {
  return (Vec<double>)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
}
#else
ELMAN_INLINE Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) { return a * b + c; }
ELMAN_INLINE Vec<double> fma(Vec<double> a, Vec<double> b, Vec<double> c) { return a * b + c; }
#endif

#if defined(__FMA__) || defined(__aarch64__)
ELMAN_INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
ELMAN_INLINE double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
ELMAN_INLINE float fma(float a, float b, float c) { return a * b + c; }
ELMAN_INLINE double fma(double a, double b, double c) { return a * b + c; }
#endif

}  // namespace elman::ELMAN_NS
