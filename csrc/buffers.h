// Memory of a kernel's own: aligned to a cache line, given back by itself, and kept by the thread for the next call
// (memory.cpp). A few bytes past the end may be read.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>

#include "kernels.h"

namespace elman::ELMAN_NS {

template <class Real>
struct Free {
  size_t bytes = 0;
  void operator()(Real* p) const { give_scratch(p, bytes); }
};
template <class Real>
using Buffer = std::unique_ptr<Real[], Free<Real>>;

// Uninitialised, aligned to a cache line.
template <class Real>
Buffer<Real> allocate(int64_t n) {
  const size_t bytes = (size_t(n) * sizeof(Real) + cache_line - 1) / cache_line * cache_line + cache_line;
  return Buffer<Real>(static_cast<Real*>(take_scratch(bytes)), Free<Real>{bytes});
}

template <class Real>
Buffer<Real> zeros(int64_t n) {
  auto p = allocate<Real>(n);
  std::memset(p.get(), 0, n * sizeof(Real));
  return p;
}

// H numbers, `count` of them or one for all, then zeros up to `padded`; zeros alone if x is null.
template <class Real>
Buffer<Real> padded_copy(const Real* x, int64_t count, int64_t H, int64_t padded) {
  auto to = zeros<Real>(padded);
  for (int64_t i = 0; i < H && x; ++i) to[i] = x[count == 1 ? 0 : i];
  return to;
}

// (rows, H) with each row padded with zeros
template <class Real>
Buffer<Real> padded_rows(const Real* x, int64_t rows, int64_t H, int64_t padded) {
  auto to = zeros<Real>(rows * padded);
  for (int64_t i = 0; i < rows; ++i) std::memcpy(to.get() + i * padded, x + i * H, H * sizeof(Real));
  return to;
}

}  // namespace elman::ELMAN_NS
