// Rows of numbers as JSON.
#pragma once

#include <cstdint>

namespace elman {

// Bytes that one number takes at most, with what stands beside it.
constexpr int64_t json_number = 18;

// text: for each row of y (n, H) a JSON array, one behind the other; ends (n): where each ends. A number has nine significant
// digits, without zeros at their end: whoever reads it as a float32 has the same bits. What is not finite is null.
// text has room for n * (H * json_number + 2) bytes.
void json_rows(int64_t n, int64_t H, const float* y, char* text, int64_t* ends);

}  // namespace elman
