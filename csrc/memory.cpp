// Large outputs are written to memory that the allocator has just mapped: every 4 KiB of it costs a page fault, which
// can take longer than the kernel itself. Where the system leaves the choice to us, ask for pages of 2 MiB.
#include <sys/mman.h>

#include "kernels.h"

namespace elman {

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
