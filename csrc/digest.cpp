#include "digest.h"

#include <cstring>
#include <initializer_list>

namespace elman {

namespace {

constexpr int at_once = 8;

// Running sums, and running sums of these, which tell where a word stands. Additions alone: every set of vectors has them.
struct Sums {
  uint64_t sum[at_once] = {}, of_sums[at_once] = {};

  void add(const unsigned char* bytes, size_t count) {
    uint64_t word[at_once] = {};
    std::memcpy(word, bytes, count);
    for (int i = 0; i < at_once; ++i) sum[i] += word[i], of_sums[i] += sum[i];
  }
};

}  // namespace

uint64_t digest(const unsigned char* bytes, int64_t count) {
  constexpr int64_t each = at_once * sizeof(uint64_t);
  Sums sums;
  for (; count >= each; bytes += each, count -= each) sums.add(bytes, each);
  sums.add(bytes, size_t(count));
  uint64_t all = 0;
  for (int i = 0; i < at_once; ++i)
    for (const uint64_t part : {sums.sum[i], sums.of_sums[i]}) all = (all ^ part ^ all >> 32) * 0xD6E8FEB86659FD93;
  return all ^ all >> 32;
}

}  // namespace elman
