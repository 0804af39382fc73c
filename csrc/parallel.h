// Threads: a range of independent tasks, cut into one contiguous piece per thread.
#pragma once

#include <cstdint>

namespace elman {

// OpenMP's pool does not survive fork(): a child runs everything on its one thread. Set in isa.cpp.
extern bool forked;

}  // namespace elman

namespace elman::ELMAN_NS {

// f(first, end) for pieces of [0, tasks). What a task computes must not depend on the piece it is in.
template <class F>
void parallel(int threads, int64_t tasks, const F& f) {
  if (threads > tasks) threads = int(tasks);
  if (threads <= 1 || forked) {
    if (tasks > 0) f(int64_t(0), tasks);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int i = 0; i < threads; ++i) f(tasks * i / threads, tasks * (i + 1) / threads);
}

}  // namespace elman::ELMAN_NS
