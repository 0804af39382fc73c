// The linear scan h[t] = a[t] * h[t-1] + b[t], forward and backward.
//
// Time is the outer loop and channels the inner one, so memory is walked in the order in which it lies; the previous
// state is read back from the output row just written (it is still in the first-level cache).
// A reset or the end of a row is a branch, never a coefficient of zero: zero times infinity would be NaN.
#include <algorithm>

#include "kernels.h"
#include "parallel.h"
#include "simd.h"

namespace elman::ELMAN_NS {
namespace {

// f(V{}, c) for every c in [0, C): full vectors first, then the scalar tail.
template <class T, class F>
ELMAN_INLINE void each(int64_t C, const F& f) {
  int64_t c = 0;
  for (; c + lanes<T> <= C; c += lanes<T>) f(Vec<T>{}, c);
  for (; c < C; ++c) f(T{}, c);
}

template <class T>
void copy(const T* from, T* to, int64_t C) {
  std::memcpy(to, from, C * sizeof(T));
}

template <class T>
void clear(T* to, int64_t C) {
  std::memset(to, 0, C * sizeof(T));
}

// h = a * previous + b
template <class T>
void step(const T* a, const T* b, const T* previous, T* h, int64_t C) {
  each<T>(C, [=](auto v, int64_t c) {
    using V = decltype(v);
    store(h + c, fma(load<V>(a + c), load<V>(previous + c), load<V>(b + c)));
  });
}

// d = g + a * next
template <class T>
void step_back(const T* a, const T* g, const T* next, T* d, int64_t C) {
  step(a, g, next, d, C);
}

template <class T>
void multiply(const T* x, const T* y, T* to, int64_t C) {
  each<T>(C, [=](auto v, int64_t c) {
    using V = decltype(v);
    store(to + c, V(load<V>(x + c) * load<V>(y + c)));
  });
}

template <class T>
void add(const T* x, const T* y, T* to, int64_t C) {
  each<T>(C, [=](auto v, int64_t c) {
    using V = decltype(v);
    store(to + c, V(load<V>(x + c) + load<V>(y + c)));
  });
}

// sum += x * y
template <class T>
void accumulate(const T* x, const T* y, T* sum, int64_t C) {
  step(x, sum, y, sum, C);
}

// Tasks are (row, block of channels). Blocks are whole cache lines, as few as keep the threads busy:
// the longer the piece of a row, the better the memory runs.
struct Blocks {
  int64_t C, size, count;
  Blocks(Dims n, int threads) : C(n.C) {
    const int64_t line = 16;
    const int64_t wanted = n.B >= threads ? 1 : (threads + n.B - 1) / std::max<int64_t>(n.B, 1);
    size = std::max(line, (n.C + wanted - 1) / wanted + line - 1) / line * line;
    count = (n.C + size - 1) / size;
  }
  int64_t first(int64_t i) const { return i * size; }
  int64_t width(int64_t i) const { return std::min(size, C - i * size); }
};

}  // namespace

template <class T>
void linear_scan(Dims n, Rows<T> a, Rows<T> b, const T* h0, const int64_t* lengths, const bool* reset,  //
                 T* h, T* last, int threads) {
  const Blocks blocks(n, threads);
  parallel(threads, n.B * blocks.count, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / blocks.count, c = blocks.first(task % blocks.count), C = blocks.width(task % blocks.count);
      const T* previous = h0 + row * n.C + c;
      T* out = h + row * n.T * n.C + c;
      for (int64_t t = 0; t < lengths[row]; ++t, previous = out, out += n.C) {
        const T* bt = b.data + row * b.row + t * b.time + c;
        if (reset[row * n.T + t]) copy(bt, out, C);
        else step(a.data + row * a.row + t * a.time + c, bt, previous, out, C);
      }
      copy(previous, last + row * n.C + c, C);
      for (int64_t t = lengths[row]; t < n.T; ++t, out += n.C) clear(out, C);
    }
  });
}

// d[t] = dL/dh[t] in full = gh[t] + a[t+1] * d[t+1];  gb = d,  ga[t] = d[t] * h[t-1],  gh0 = a[0] * d[0].
template <class T>
void linear_scan_back(Dims n, Rows<T> a, const T* h0, const int64_t* lengths, const bool* reset, const T* h,  //
                      Rows<T> gh, const T* glast, bool constant, T* ga, T* gb, T* gh0, int threads) {
  const Blocks blocks(n, threads);
  parallel(threads, n.B * blocks.count, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / blocks.count, c = blocks.first(task % blocks.count), C = blocks.width(task % blocks.count);
      const int64_t length = lengths[row], at = row * n.T * n.C + c;
      const bool* resets = reset + row * n.T;
      const auto a_at = [&](int64_t t) { return a.data + row * a.row + t * a.time + c; };
      T* sum = ga + row * n.C + c;
      if (constant) clear(sum, C);
      for (int64_t t = n.T - 1; t >= length; --t) {
        clear(gb + at + t * n.C, C);
        if (!constant) clear(ga + at + t * n.C, C);
      }
      const T* next = glast + row * n.C + c;
      for (int64_t t = length - 1; t >= 0; --t) {
        const T* g = gh.data + row * gh.row + t * gh.time + c;
        T* d = gb + at + t * n.C;
        if (t == length - 1) add(g, next, d, C);
        else if (resets[t + 1]) copy(g, d, C);
        else step_back(a_at(t + 1), g, next, d, C);
        const T* before = t > 0 ? h + at + (t - 1) * n.C : h0 + row * n.C + c;
        if (constant) {
          if (!resets[t]) accumulate(d, before, sum, C);
        } else if (resets[t]) clear(ga + at + t * n.C, C);
        else multiply(d, before, ga + at + t * n.C, C);
        next = d;
      }
      T* g0 = gh0 + row * n.C + c;
      if (length == 0) copy(next, g0, C);
      else if (resets[0]) clear(g0, C);
      else multiply(a_at(0), next, g0, C);
    }
  });
}

#define ELMAN_INSTANCE(T)                                                                                            \
  template LinearScan<T> linear_scan<T>;                                                                             \
  template LinearScanBack<T> linear_scan_back<T>;
ELMAN_INSTANCE(float)
ELMAN_INSTANCE(double)

}  // namespace elman::ELMAN_NS
