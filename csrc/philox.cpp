// The counter-based streams of random numbers: for each row, n words of Philox(key = seed, counter = (block, draw)); and
// numbers of Student's distribution.
#include "philox.h"

#include <algorithm>
#include <cstring>

#include "kernels.h"
#include "parallel.h"
#include "steps.h"

namespace elman::ELMAN_NS {

void philox(int64_t B, int64_t n, int64_t first, const int64_t* draws, int64_t* words, int threads) {
  constexpr int64_t at_once = 8;
  constexpr int64_t worth = 1 << 14;  // words that take about as long as it takes to wake a second thread
  if (B * n < worth) threads = 1;
  parallel(threads, B, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      for (int64_t i = 0; i < n; i += 2 * at_once) {
        PhiloxBlock blocks[at_once];
        if (n - i > 2) elman::philox<at_once>(draws[2 * b], uint64_t(first) + i / 2, draws[2 * b + 1], blocks);
        else blocks[0] = elman::philox(draws[2 * b], uint64_t(first) + i / 2, draws[2 * b + 1]);
        std::memcpy(words + b * n + i, blocks, std::min(n - i, 2 * at_once) * sizeof(int64_t));
      }
  });
}

void student_t(int64_t B, int64_t D, const int64_t* draws, const double* df, double* t, int threads) {
  constexpr int64_t worth = 1 << 10;
  parallel(threads_for(B * D, worth, threads), B, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      for (int64_t d = 0; d < D; ++d) t[b * D + d] = elman::student_t(draws + 2 * b, D, d, df[b * D + d]);
  });
}

template <class Real>
int append(Program<Real>& program, const StudentTOperation<Real>& o) {
  auto& steps = Steps<Real>::of(program);
  const int64_t D = steps.width(o.df);
  const int y = steps.slot(D);
  steps.each_row([=](Workspace<Real>& w, int64_t row) {
    const Real *df = w.at(o.df, row), *mean = w.at(o.mean, row), *scale = w.at(o.scale, row);
    Real* to = w.at(y, row);
    for (int64_t d = 0; d < D; ++d)
      to[d] = Real(double(mean[d]) + double(scale[d]) * elman::student_t(w.draws + 2 * row, D, d, double(df[d])));
  });
  steps.draw();
  return y;
}

ELMAN_APPEND(StudentTOperation)

}  // namespace elman::ELMAN_NS
