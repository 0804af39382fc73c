// The counter-based streams of random numbers: for each row, n words of Philox(key = seed, counter = (block, draw)).
#include "philox.h"

#include "kernels.h"
#include "parallel.h"

namespace elman::ELMAN_NS {

void philox(int64_t B, int64_t n, int64_t first, const int64_t* draws, int64_t* words, int threads) {
  constexpr int64_t worth = 1 << 14;  // words that take about as long as it takes to wake a second thread
  if (B * n < worth) threads = 1;
  parallel(threads, B, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      for (int64_t i = 0; i < n; i += 2) {
        const PhiloxBlock block = elman::philox(draws[2 * b], uint64_t(first) + i / 2, draws[2 * b + 1]);
        words[b * n + i] = int64_t(block.first);
        if (i + 1 < n) words[b * n + i + 1] = int64_t(block.second);
      }
  });
}

}  // namespace elman::ELMAN_NS
