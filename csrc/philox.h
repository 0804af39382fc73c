// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): a keyed bijection of 128-bit counters.
// Of 32-bit words, because then a key is one 64-bit seed, and the reference needs products of 64 bits, not of 128.
#pragma once

#include <cmath>
#include <cstdint>

namespace elman {

struct PhiloxBlock {
  uint64_t first, second;  // the words 0 and 1, 2 and 3 of the block, low word first
};

// N blocks side by side, whose counters follow one another: the compiler makes vectors of them, of its own instruction set each
// time, so that the functions here are static.
template <int N>
static inline void philox(uint64_t key, uint64_t low, uint64_t high, PhiloxBlock* to) {
  uint64_t c0[N], c1[N], c2[N], c3[N];  // 32 bits each
  uint64_t k0 = uint32_t(key), k1 = key >> 32;
  constexpr uint64_t word = 0xFFFFFFFF;
  for (int i = 0; i < N; ++i) c0[i] = (low + i) & word, c1[i] = (low + i) >> 32, c2[i] = high & word, c3[i] = high >> 32;
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < N; ++i) {
      const uint64_t p0 = 0xD2511F53 * (c0[i] & word), p1 = 0xCD9E8D57 * (c2[i] & word);
      c0[i] = p1 >> 32 ^ c1[i] ^ k0, c1[i] = p1 & word;
      c2[i] = p0 >> 32 ^ c3[i] ^ k1, c3[i] = p0 & word;
    }
    k0 = (k0 + 0x9E3779B9) & word, k1 = (k1 + 0xBB67AE85) & word;
  }
  for (int i = 0; i < N; ++i) to[i] = {c0[i] | c1[i] << 32, c2[i] | c3[i] << 32};
}

static inline PhiloxBlock philox(uint64_t key, uint64_t low, uint64_t high) {
  PhiloxBlock block;
  philox<1>(key, low, high, &block);
  return block;
}

// Of a word: above 0 and below 1.
static inline double uniform(uint64_t word) { return (double(word >> 12) + 0.5) * 0x1p-52; }

// Number d of an event of D, of the words d and D + d that the draw (seed, number) opens: sqrt(df (u^(-2/df) - 1)) cos(2 pi v)
// has Student's distribution with df degrees of freedom (Bailey, 1994).
static inline double student_t(const int64_t* draw, int64_t D, int64_t d, double df) {
  const int64_t e = D + d;
  const PhiloxBlock near = philox(draw[0], d / 2, draw[1]), far = e / 2 == d / 2 ? near : philox(draw[0], e / 2, draw[1]);
  const double u = uniform(d % 2 ? near.second : near.first), v = uniform(e % 2 ? far.second : far.first);
  return std::sqrt(df * std::expm1(-2 / df * std::log(u))) * std::cos(2 * 3.141592653589793 * v);
}

}  // namespace elman
