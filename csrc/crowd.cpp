// See crowd.h.
#include "crowd.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <thread>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace elman {
namespace {

constexpr int64_t millisecond = 1'000'000;
constexpr int64_t memory = 10 * millisecond;                                 // what is older counts half, or less
constexpr int64_t shortest = 10 * millisecond, longest = 640 * millisecond;  // on one thread, before a team is tried again

// What lately was worked and lost. Threads of Python may report at once: an update that gets lost does no harm.
std::atomic<int64_t> worked_lately{0}, lost_lately{0}, until{0}, pause{shortest};

std::atomic<int64_t> dissolved_teams{0};

}  // namespace

int64_t nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool crowded() {
  const int64_t end = until.load(std::memory_order_relaxed);
  if (end == 0) return false;
  if (nanoseconds() < end) return true;
  until.store(0, std::memory_order_relaxed);
  return false;
}

void report(int64_t worked, int64_t lost, bool dissolved) {
  if (dissolved) dissolved_teams.fetch_add(1, std::memory_order_relaxed);
  int64_t all_worked = worked_lately.load(std::memory_order_relaxed) + worked;
  int64_t all_lost = lost_lately.load(std::memory_order_relaxed) + lost;
  if (all_lost > all_worked && all_lost > millisecond) {
    const int64_t length = pause.load(std::memory_order_relaxed);
    until.store(nanoseconds() + length, std::memory_order_relaxed);
    pause.store(std::min(2 * length, longest), std::memory_order_relaxed);
    all_worked = all_lost = 0;
  } else if (all_worked + all_lost > memory) {
    if (all_lost < all_worked / 2) pause.store(shortest, std::memory_order_relaxed);
    all_worked /= 2, all_lost /= 2;
  }
  worked_lately.store(all_worked, std::memory_order_relaxed);
  lost_lately.store(all_lost, std::memory_order_relaxed);
}

int64_t teams_dissolved() { return dissolved_teams.load(std::memory_order_relaxed); }

#if defined(__linux__)
void sleep_while(const std::atomic<int>& word, int value) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void wake(const std::atomic<int>& word) { syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0); }
#else
void sleep_while(const std::atomic<int>&, int) { std::this_thread::yield(); }
void wake(const std::atomic<int>&) {}
#endif

}  // namespace elman
