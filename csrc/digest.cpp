// 64 bits that tell memory from what it was before: not against an adversary, but about as fast as memory is read.
#include "kernels.h"
#include "simd.h"

namespace elman::ELMAN_NS {
namespace {

typedef uint64_t Words __attribute__((vector_size(vector_bytes)));

constexpr int at_once = 32;  // words: as many products as it takes to keep the multipliers busy
constexpr int each = vector_bytes / sizeof(uint64_t);
constexpr uint64_t odd = 0x9E3779B185EBCA87;

// Running numbers, each of every at_once-th word. A step is one-to-one in what was before and in the word, and the high bits,
// where numbers have their signs, come down to the low ones, from where the product spreads them.
struct Mixed {
  Words of[at_once / each];

  Mixed() {
    for (int i = 0; i < at_once; ++i) of[i / each][i % each] = uint64_t(i) + 1;
  }

  ELMAN_INLINE void add(const unsigned char* bytes) {
    for (int i = 0; i < at_once / each; ++i) {
      const Words mixed = of[i] ^ load<Words>(bytes + i * vector_bytes);
      of[i] = (mixed << 31 | mixed >> 33) * odd;
    }
  }
};

}  // namespace

uint64_t digest(const unsigned char* bytes, int64_t count) {
  constexpr int64_t round = at_once * sizeof(uint64_t);
  Mixed mixed;
  for (; count >= round; bytes += round, count -= round) mixed.add(bytes);
  if (count > 0) {
    unsigned char rest[round] = {};
    std::memcpy(rest, bytes, size_t(count));
    mixed.add(rest);
  }
  uint64_t all = 0;
  for (int i = 0; i < at_once; ++i) {
    const uint64_t part = mixed.of[i / each][i % each];
    all = (all ^ part ^ part >> 32) * 0xD6E8FEB86659FD93;
    all ^= all >> 32;
  }
  return all;
}

}  // namespace elman::ELMAN_NS
