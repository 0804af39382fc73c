// Threads: a range of independent tasks, cut into one contiguous piece per thread; or a team that meets at barriers.
//
// Other processes want the cores too. A thread that the system has put aside keeps the others waiting for milliseconds, at
// every barrier again. So waiting is measured against working: a team that waits longer than it works is dissolved, its
// first thread finishes alone, and for a while everything runs on one thread (crowd.cpp). The bits are the same.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "crowd.h"

#if defined(ELMAN_SANITIZE_THREADS)
#include <thread>
#include <vector>
#elif defined(_OPENMP)
#include <omp.h>
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

// As many threads as were given, if the work is worth them. The sanitizer of threads is shown them at any work.
constexpr int threads_for(int64_t work, int64_t worth, int threads) {
#if defined(ELMAN_SANITIZE_THREADS)
  worth = 1;
#endif
  return work < worth ? 1 : threads;
}

// Pieces of work, each taken once: a thread begins with its own, then takes what late ones have not begun.
class Pieces {
 public:
  explicit Pieces(int count) : count_(count), taken_(new std::atomic<bool>[count]()) {}

  // f(i) for every piece that thread `mine` gets.
  template <class F>
  void each(int mine, const F& f) const {
    for (int i = 0; i < count_; ++i) {
      const int piece = (mine + i) % count_;
      if (!taken_[piece].exchange(true, std::memory_order_relaxed)) f(piece);
    }
  }

 private:
  int count_;
  std::unique_ptr<std::atomic<bool>[]> taken_;
};

// Where the threads of a team wait for each other: for some microseconds by spinning, then asleep. A thread that spins, or
// yields, keeps its core; on one that is free the system puts the thread that is waited for.
class Barrier {
 public:
  void wait(int threads) {
    if (threads == 1) return;
    const int round = round_.load(std::memory_order_relaxed);
    if (waiting_.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
      waiting_.store(0, std::memory_order_relaxed);
      dissolved_ = tired_.load(std::memory_order_relaxed);
      round_.store(round + 1);  // before it looks for sleepers, as they look at it after they have said that they sleep
      if (sleeping_.load() > 0) wake(round_);
      return;
    }
    for (int spins = 0; spins < 100; ++spins) {  // about as long as the clock takes to be read
      if (round_.load(std::memory_order_acquire) != round) return;
      pause();
    }
    const int64_t from = nanoseconds();
    for (int spins = 0; spins < 2000 && round_.load(std::memory_order_acquire) == round; ++spins) pause();
    if (round_.load(std::memory_order_acquire) == round) sleep(round);
    const int64_t now = nanoseconds();
    lost_.fetch_add((now - from) / (threads - 1), std::memory_order_relaxed);
    if (lost() > least && 2 * lost() > now - begin_) tired_.store(true, std::memory_order_relaxed);
  }

  bool dissolved() const { return dissolved_; }  // the same to all of them, from one wait to the next
  int64_t lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  void sleep(int round) {
    sleeping_.fetch_add(1);
    while (round_.load() == round) sleep_while(round_, round);
    sleeping_.fetch_sub(1);
  }

  static void pause() {
#if defined(__x86_64__)
    _mm_pause();
#endif
  }

  static constexpr int64_t least = 50'000;  // nanoseconds, as it takes to wake a thread

  const int64_t begin_ = nanoseconds();
  bool dissolved_ = false;
  alignas(64) std::atomic<int> waiting_{0};
  alignas(64) std::atomic<int> round_{0};
  alignas(64) std::atomic<int> sleeping_{0};
  alignas(64) std::atomic<int64_t> lost_{0};  // nanoseconds
  std::atomic<bool> tired_{false};            // waited longer than worked: the next round is the last one together
};

// A thread among `threads` that divide some work.
struct Member {
  int thread, threads;
  Barrier& barrier;
  const Pieces& pieces;

  // Wait for the others: false if the first one finishes alone, and this is another.
  bool meet() {
    barrier.wait(threads);
    if (threads == 1 || !barrier.dissolved()) return true;
    threads = 1;
    return thread == 0;
  }
};

// What a team does, whatever its type: how a team begins and ends is compiled once, not for each caller.
class TeamWork {
 public:
  template <class F>
  explicit TeamWork(const F& f) : f_(&f), call_([](const void* f, Member& member) { (*static_cast<const F*>(f))(member); }) {}

  void operator()(Member member) const { call_(f_, member); }

 private:
  const void* f_;
  void (*call_)(const void*, Member&);
};

// f(thread, how many there are) on at most `threads` at once. How OpenMP begins and ends a region is hidden from the sanitizer of
// threads, which would take all that they share for a race: for it they are threads of the standard library.
template <class F>
void at_once([[maybe_unused]] int threads, const F& f) {
#if defined(ELMAN_SANITIZE_THREADS)
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back([&f, i, threads] { f(i, threads); });
  f(0, threads);
  for (std::thread& other : others) other.join();
#elif defined(_OPENMP)
#pragma omp parallel num_threads(threads)
  f(omp_get_thread_num(), omp_get_num_threads());
#else
  f(0, 1);
#endif
}

inline void run_team(int threads, const TeamWork& work) {
  Barrier barrier;
  const Pieces pieces(threads);
  if (threads <= 1 || forked || crowded()) return work({0, 1, barrier, pieces});
  const int64_t begin = nanoseconds();
  int64_t done = begin;
  Barrier last;  // OpenMP's own would have whoever is there first spin for milliseconds
  at_once(threads, [&](int thread, int count) {
    work({thread, count, barrier, pieces});
    if (thread == 0) done = nanoseconds();
    last.wait(count);
  });
  const int64_t end = nanoseconds(), lost = barrier.lost() + end - done;
  report(end - begin - lost, lost, barrier.dissolved());
}

// f(member) on a team of at most `threads`, which have that many pieces of work.
template <class F>
void team(int threads, const F& f) {
  run_team(threads, TeamWork(f));
}

// f(first, end) for pieces of [0, tasks). What a task computes must not depend on the piece it is in.
template <class F>
void parallel(int threads, int64_t tasks, const F& f) {
  if (threads > tasks) threads = int(tasks);
  if (threads <= 1 || forked || crowded()) {
    if (tasks > 0) f(int64_t(0), tasks);
    return;
  }
  team(threads, [&](const Member& member) {
    member.pieces.each(member.thread, [&](int i) { f(tasks * i / threads, tasks * (i + 1) / threads); });
  });
}

}  // namespace elman::ELMAN_NS
