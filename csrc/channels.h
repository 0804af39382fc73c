// What kernels over independent channels share: how a row is walked, and how its channels are shared out to threads.
#pragma once

#include <algorithm>

#include "kernels.h"
#include "parallel.h"
#include "simd.h"

namespace elman::ELMAN_NS {

// f(V{}, c) for every c in [0, C): full vectors first, then element by element. An element may be several numbers.
template <class Real, class Element, class F>
ELMAN_INLINE void each(int64_t C, const F& f) {
  int64_t c = 0;
  for (; c + lanes<Real> <= C; c += lanes<Real>) f(Vec<Real>{}, c);
  for (; c < C; c += sizeof(Element) / sizeof(Real)) f(Element{}, c);
}

// The same from the last channel to the first: going back in time, memory is then walked straight down, which the
// processor's prefetchers follow (2 times faster than rows walked up while time goes down).
template <class Real, class Element, class F>
ELMAN_INLINE void each_down(int64_t C, const F& f) {
  constexpr int64_t tail = sizeof(Element) / sizeof(Real);
  int64_t c = C;
  for (; c % lanes<Real> != 0; c -= tail) f(Element{}, c - tail);
  for (; c > 0; c -= lanes<Real>) f(Vec<Real>{}, c - lanes<Real>);
}

template <class Real>
void copy(const Real* from, Real* to, int64_t C) {
  std::memcpy(to, from, C * sizeof(Real));
}

template <class Real>
void clear(Real* to, int64_t C) {
  std::memset(to, 0, C * sizeof(Real));
}

constexpr int64_t widest = 512;  // channels whose running sums stay in the first-level cache

// Tasks are (row, block of channels). Blocks are whole cache lines, as few as keep the threads busy:
// the longer the piece of a row, the better the memory runs.
struct Blocks {
  int64_t C, size, count;
  int threads;

  Blocks(Dims n, int wanted, int64_t most = INT64_MAX)
      : C(n.C), threads(threads_for(n.B * n.T * n.C, WorthAThread::elements, wanted)) {
    const int64_t line = 16, pieces = n.B >= threads ? 1 : threads;
    size = std::max<int64_t>((n.C + pieces - 1) / pieces + line - 1, line) / line * line;
    size = std::min(size, most);  // a multiple of a line
    count = (n.C + size - 1) / size;
  }

  template <class F>  // f(row, first channel, channels)
  void run(int64_t B, const F& f) const {
    parallel(threads, B * count, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i % count * size;
        f(i / count, first, std::min(size, C - first));
      }
    });
  }
};

}  // namespace elman::ELMAN_NS
