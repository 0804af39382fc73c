// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): a keyed bijection of 128-bit counters.
// Of 32-bit words, because then a key is one 64-bit seed, and the reference needs products of 64 bits, not of 128.
#pragma once

#include <cstdint>

namespace elman {

struct PhiloxBlock {
  uint64_t first, second;  // the words 0 and 1, 2 and 3 of the block, low word first
};

inline PhiloxBlock philox(uint64_t key, uint64_t low, uint64_t high) {
  uint32_t c0 = uint32_t(low), c1 = uint32_t(low >> 32), c2 = uint32_t(high), c3 = uint32_t(high >> 32);
  uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t(0xD2511F53) * c0, p1 = uint64_t(0xCD9E8D57) * c2;
    c0 = uint32_t(p1 >> 32) ^ c1 ^ k0, c1 = uint32_t(p1);
    c2 = uint32_t(p0 >> 32) ^ c3 ^ k1, c3 = uint32_t(p0);
    k0 += 0x9E3779B9, k1 += 0xBB67AE85;
  }
  return {c0 | uint64_t(c1) << 32, c2 | uint64_t(c3) << 32};
}

}  // namespace elman
