// 64 bits that tell memory from what it was before: not against an adversary, but at the speed at which memory is read.
#pragma once

#include <cstdint>

namespace elman {

uint64_t digest(const unsigned char* bytes, int64_t count);

}  // namespace elman
