// Whether other processes leave room for a second thread; how to sleep; what time it is. One for the process (crowd.cpp).
#pragma once

#include <atomic>
#include <cstdint>

namespace elman {

int64_t nanoseconds();  // since some moment

void sleep_while(const std::atomic<int>& word, int value);  // until woken, or for no reason; not if it has another value
void wake(const std::atomic<int>& word);

// Whether threads that wait for each other have lately waited longer than they worked: then one alone is faster.
bool crowded();

// What a team found, in nanoseconds; and whether it was dissolved.
void report(int64_t worked, int64_t lost, bool dissolved);

int64_t teams_dissolved();  // since the module was loaded

}  // namespace elman
