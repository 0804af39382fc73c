// Memory of the process, one for all instruction sets: what kernels keep between calls, and large pages.
//
// Memory that is fresh from the system costs a page fault for every 4 KiB, which can take longer than the kernel that writes to
// it; malloc gives large blocks back to the system when they are freed, or not, by the luck of the heap. So a thread keeps the
// blocks that its kernels have freed, up to a bound, for the next call; what one thread took and another gave back, it finds
// there. When it ends it frees them; release_scratch frees those of all threads.
#include <sys/mman.h>

#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "kernels.h"

namespace elman {

extern bool forked;  // isa.cpp

namespace {

constexpr size_t smallest = size_t(1) << 14;  // below, malloc's own lists do
constexpr size_t most = size_t(1) << 26;      // that a thread keeps, all blocks together

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__  // as GCC says it
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
constexpr bool keeps = false;  // the sanitizer shall see every use, and fill fresh memory
#else
constexpr bool keeps = true;
#endif

void* fresh(size_t bytes) {
  void* p = std::aligned_alloc(cache_line, bytes);
  if (!p) throw std::bad_alloc();
  return p;
}

// What a block of so many bytes has in truth: one of eight sizes to a doubling, so that calls of nearly the same shape share it.
size_t rounded(size_t bytes) {
  size_t step = cache_line;
  while (step * 16 < bytes) step *= 2;
  return (bytes + step - 1) / step * step;
}

class Kept;

// Those of all threads. Never destroyed: threads may end after everything else.
struct All {
  std::mutex mutex;
  std::vector<Kept*> threads;
};
All& all() {
  static All* const them = new All;
  return *them;
}

// The blocks that a thread keeps, oldest first.
class Kept {
 public:
  Kept() {
    if (forked) return;  // the thread that held the lock may not have come along
    const std::lock_guard lock(all().mutex);
    all().threads.push_back(this);
  }
  ~Kept();

  void* take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    for (size_t i = blocks_.size(); i-- > 0;) {
      if (blocks_[i].bytes != bytes) continue;
      void* p = blocks_[i].begin;
      held_ -= bytes;
      blocks_.erase(blocks_.begin() + i);
      return p;
    }
    return nullptr;
  }

  void give(void* p, size_t bytes) {
    const std::lock_guard lock(mutex_);
    try {
      blocks_.push_back({p, bytes});
    } catch (const std::bad_alloc&) {  // which would end the process: buffers give their blocks back as they are destroyed
      return std::free(p);
    }
    held_ += bytes;
    size_t old = 0;
    for (; held_ > most; ++old) free(blocks_[old]);
    blocks_.erase(blocks_.begin(), blocks_.begin() + old);
  }

  int64_t held() {
    const std::lock_guard lock(mutex_);
    return int64_t(held_);
  }

  void release() {
    const std::lock_guard lock(mutex_);
    for (const Block& block : blocks_) free(block);
    blocks_.clear();
  }

 private:
  struct Block {
    void* begin;
    size_t bytes;
  };
  void free(const Block& block) {
    std::free(block.begin);
    held_ -= block.bytes;
  }

  std::mutex mutex_;  // for release_scratch, which comes from another thread
  std::vector<Block> blocks_;
  size_t held_ = 0;
};

thread_local bool ended = false;  // of a thread whose blocks are freed already

Kept::~Kept() {
  ended = true;
  release();
  if (forked) return;
  const std::lock_guard lock(all().mutex);
  auto& threads = all().threads;
  for (size_t i = 0; i < threads.size(); ++i)
    if (threads[i] == this) threads.erase(threads.begin() + i--);
}

Kept& kept() {
  thread_local Kept mine;
  return mine;
}

// A block that another thread keeps, or null.
void* take_from_others(size_t bytes) {
  if (forked) return nullptr;
  const std::lock_guard lock(all().mutex);
  for (Kept* thread : all().threads)
    if (void* p = thread->take(bytes)) return p;
  return nullptr;
}

bool keep(size_t bytes) { return keeps && !ended && bytes >= smallest && bytes <= most; }

}  // namespace

void* take_scratch(size_t bytes) {
  if (!keep(bytes)) return fresh(bytes);
  const size_t size = rounded(bytes);
  void* p = kept().take(size);
  if (!p) p = take_from_others(size);
  return p ? p : fresh(size);
}

void give_scratch(void* p, size_t bytes) {
  if (p && keep(bytes)) kept().give(p, rounded(bytes));
  else std::free(p);
}

int64_t scratch_kept() {
  if (forked) return kept().held();  // the thread that held the lock may not have come along
  const std::lock_guard lock(all().mutex);
  int64_t bytes = 0;
  for (Kept* thread : all().threads) bytes += thread->held();
  return bytes;
}

void release_scratch() {
  if (forked) {
    kept().release();
  } else {
    const std::lock_guard lock(all().mutex);
    for (Kept* thread : all().threads) thread->release();
  }
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

bool keeps_memory() { return keeps; }

void prefer_huge_pages([[maybe_unused]] void* begin, [[maybe_unused]] int64_t bytes) {
#ifdef MADV_HUGEPAGE
  constexpr uintptr_t page = uintptr_t(1) << 21;
  const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(begin) + uintptr_t(bytes)) / page * page;
  // Advice: if it is refused, everything works as before.
  if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#endif
}

}  // namespace elman
