// Threads: a range of independent tasks, cut into one contiguous piece per thread; or a team that meets at barriers.
#pragma once

#include <atomic>
#include <cstdint>

#if defined(_OPENMP)
#include <omp.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace elman {

// OpenMP's pool does not survive fork(): a child runs everything on its one thread. Set in isa.cpp.
extern bool forked;

}  // namespace elman

namespace elman::ELMAN_NS {

// How much work takes about as long as it takes to wake a second thread.
struct WorthAThread {
  static constexpr int64_t multiply_adds = 1 << 19;  // of products, out of the cache
  static constexpr int64_t elements = 1 << 15;       // that a scan reads, updates and writes
  static constexpr int64_t bytes = 1 << 17;          // that are copied
};

// As many threads as were given, if the work is worth them.
constexpr int threads_for(int64_t work, int64_t worth, int threads) { return work < worth ? 1 : threads; }

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

// Where the threads of a team wait for each other: for some microseconds by spinning, then by giving up the core,
// because a thread that only spins can keep the one it waits for from running.
class Barrier {
 public:
  void wait(int threads) {
    if (threads == 1) return;
    const int round = round_.load(std::memory_order_relaxed);
    if (waiting_.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
      waiting_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins) pause(spins);
  }

 private:
  static void pause(int spins) {
#if defined(__x86_64__)
    _mm_pause();
#endif
#if defined(__linux__)
    if (spins > 2000) sched_yield();
#endif
  }

  alignas(64) std::atomic<int> waiting_{0};
  alignas(64) std::atomic<int> round_{0};
};

// f(thread, threads, barrier) on a team of at most `threads`.
template <class F>
void team(int threads, const F& f) {
  Barrier barrier;
#if defined(_OPENMP)
  if (threads > 1 && !forked) {
#pragma omp parallel num_threads(threads)
    f(omp_get_thread_num(), omp_get_num_threads(), barrier);
    return;
  }
#endif
  f(0, 1, barrier);
}

}  // namespace elman::ELMAN_NS
