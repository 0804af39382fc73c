// Memory of a kernel's own: aligned to a cache line, given back by itself. A few bytes past the end may be read.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "kernels.h"

namespace elman::ELMAN_NS {

template <class T>
struct Free {
  void operator()(T* p) const { std::free(p); }
};
template <class T>
using Buffer = std::unique_ptr<T[], Free<T>>;

// Uninitialised, aligned to a cache line.
template <class T>
Buffer<T> allocate(int64_t n) {
  const size_t bytes = (size_t(n) * sizeof(T) + cache_line - 1) / cache_line * cache_line + cache_line;
  T* p = static_cast<T*>(std::aligned_alloc(cache_line, bytes));
  if (!p) throw std::bad_alloc();
  return Buffer<T>(p);
}

template <class T>
Buffer<T> zeros(int64_t n) {
  auto p = allocate<T>(n);
  std::memset(p.get(), 0, n * sizeof(T));
  return p;
}

// H numbers, `count` of them or one for all, then zeros up to `padded`; zeros alone if x is null.
template <class T>
Buffer<T> padded_copy(const T* x, int64_t count, int64_t H, int64_t padded) {
  auto to = zeros<T>(padded);
  for (int64_t i = 0; i < H && x; ++i) to[i] = x[count == 1 ? 0 : i];
  return to;
}

// (rows, H) with each row padded with zeros
template <class T>
Buffer<T> padded_rows(const T* x, int64_t rows, int64_t H, int64_t padded) {
  auto to = zeros<T>(rows * padded);
  for (int64_t i = 0; i < rows; ++i) std::memcpy(to.get() + i * padded, x + i * H, H * sizeof(T));
  return to;
}

}  // namespace elman::ELMAN_NS
