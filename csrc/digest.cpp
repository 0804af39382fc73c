#include "digest.h"

#include <cstring>

namespace elman {

namespace {

constexpr int at_once = 8;
constexpr uint64_t odd = 0x9E3779B185EBCA87;

constexpr uint64_t rotated(uint64_t x) { return x << 31 | x >> 33; }

// Running numbers, each of every eighth word. A step is one-to-one in what was before and in the word, and the high bits, where
// numbers have their signs, come down to the low ones, from where the product spreads them.
struct Mixed {
  uint64_t of[at_once] = {1, 2, 3, 4, 5, 6, 7, 8};

  void add(const unsigned char* bytes, size_t count) {
    uint64_t word[at_once] = {};
    std::memcpy(word, bytes, count);
    for (int i = 0; i < at_once; ++i) of[i] = rotated(of[i] ^ word[i]) * odd;
  }
};

}  // namespace

uint64_t digest(const unsigned char* bytes, int64_t count) {
  constexpr int64_t each = at_once * sizeof(uint64_t);
  Mixed mixed;
  for (; count >= each; bytes += each, count -= each) mixed.add(bytes, each);
  if (count > 0) mixed.add(bytes, size_t(count));
  uint64_t all = 0;
  for (const uint64_t part : mixed.of) {
    all = (all ^ part ^ part >> 32) * 0xD6E8FEB86659FD93;
    all ^= all >> 32;
  }
  return all;
}

}  // namespace elman
