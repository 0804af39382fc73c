// What the structs of the kernels are made of. Letters as in core.py: B batch, T time, C channels.
//
// A family of kernels has up to four structs: what it reads (Inputs), what it writes (Outputs); and for its backward pass,
// which reads the inputs too, what arrives from behind (Arriving) and what it writes (Gradients). An operation of a program has
// one. Each lists its fields once more, by ELMAN_FIELDS, for those who know them by name: from_dict.h fills it from Python.
#pragma once

#include <cstdint>

// A struct of the fields a and b gets fields(visit), which calls visit("a, b", a, b).
#define ELMAN_FIELDS(...)             \
  template <class Visit>              \
  void fields(Visit& visit) {         \
    visit(#__VA_ARGS__, __VA_ARGS__); \
  }

namespace elman {

constexpr int64_t cache_line = 64;  // bytes

// `width` numbers of `itemsize` bytes, rounded up to whole cache lines: the same for every instruction set.
constexpr int64_t padded_to_lines(int64_t width, int64_t itemsize) {
  const int64_t line = cache_line / itemsize;
  return (width + line - 1) / line * line;
}

// A (B, T, C) input: element (b, t, c) is data[b * row + t * time + c]. Zero strides express a broadcast.
template <class Real>
struct Rows {
  const Real* data;
  int64_t row, time;
};

struct Dims {
  int64_t B, T, C;
  ELMAN_FIELDS(B, T, C)
};

}  // namespace elman
