// y = x W^T + b: x (M, K), W (N, K), b (N) or null, y (M, N).
//
// Whichever of x and W has fewer rows is packed (transposed into lanes), the other one is read as it stands and
// broadcast: each element's sum is the same either way, see product.h.
#include "product.h"

#include "kernels.h"
#include "panels.h"
#include "parallel.h"
#include "steps.h"

namespace elman::ELMAN_NS {
namespace {

constexpr int64_t depth = 256;            // k at a time: 16 KiB of packed panel, half of a small L1 cache
constexpr int64_t block_bytes = 1 << 18;  // rows of x at a time: half of a small L2 cache

// Columns [n, n + G * lanes) of rows [m, m + R), continuing from y unless k is 0.
template <int R, int G, class Real>
ELMAN_INLINE void columns(const Real* x, int64_t ldx, const Real* panel, const Real* b, Real* y, int64_t ldy, int64_t k,
                          int64_t count, int64_t columns) {
  constexpr int L = lanes<Real>;
  Vec<Real> acc[R][G];
#pragma GCC unroll 16
  for (int m = 0; m < R; ++m)
#pragma GCC unroll 16
    for (int g = 0; g < G; ++g) {
      const int64_t left = std::max<int64_t>(columns - g * L, 0);
      if (k > 0) acc[m][g] = load_some(y + m * ldy + g * L, left);
      else acc[m][g] = b ? load_some(b + g * L, left) : Vec<Real>{};
    }
  tile<R, 1, G>(acc, panel, 0, x, ldx, count);
#pragma GCC unroll 16
  for (int m = 0; m < R; ++m)
#pragma GCC unroll 16
    for (int g = 0; g < G; ++g) store_some(y + m * ldy + g * L, acc[m][g], std::max<int64_t>(columns - g * L, 0));
}

template <class Real>
void wide(int64_t M, int64_t N, int64_t K, const Real* x, const Real* w, const Real* b, Real* y, int threads) {
  constexpr int L = lanes<Real>, G = 2, P = G * L;
  const int64_t panels = (N + P - 1) / P;
  const auto packed = allocate<Real>(panels * K * P);
  parallel(threads, panels, [&](int64_t first, int64_t end) {
    for (int64_t j = first; j < end; ++j)
      for (int64_t g = 0; g < G; ++g) {
        const int64_t n = j * P + g * L;
        pack_lanes(w + n * K, K, std::min<int64_t>(N - n, L), K, packed.get() + j * K * P + g * L, P);
      }
  });
  prefer_huge_pages(y, M * N * sizeof(Real));
  constexpr int64_t R = rows_by_two;
  const int64_t strips = (M + R - 1) / R;
  const int64_t rows = std::max<int64_t>(block_bytes / (R * sizeof(Real) * std::max<int64_t>(K, 1)), 1) * R;
  parallel(threads, strips, [&](int64_t first, int64_t end) {
    const int64_t stop = std::min(end * R, M);
    for (int64_t m0 = first * R; m0 < stop; m0 += rows)
      for (int64_t j = 0; j < panels; ++j)
        for (int64_t k = 0; k < std::max<int64_t>(K, 1); k += depth)
          row_tiles<R>(m0, std::min(m0 + rows, stop), [&](auto rows_of_x, int64_t m) {
            columns<rows_of_x, G>(x + m * K + k, K, packed.get() + j * K * P + k * P, b ? b + j * P : nullptr,
                                  y + m * N + j * P, N, k, std::min(depth, K - k), N - j * P);
          });
  });
}

// The same with the roles exchanged: R rows of W are broadcast over lanes of x, and the tile is transposed on its way out.
template <int R, int G, class Real>
ELMAN_INLINE void rows(const Real* panel, const Real* w, const Real* b, Real* y, int64_t N, int64_t K, int64_t count) {
  constexpr int L = lanes<Real>;
  Vec<Real> acc[R][G];
#pragma GCC unroll 16
  for (int n = 0; n < R; ++n)
#pragma GCC unroll 16
    for (int g = 0; g < G; ++g) acc[n][g] = b ? splat(b[n]) : Vec<Real>{};
  tile<R, 1, G>(acc, panel, 0, w, K, K);
  alignas(64) Real out[R][G * L];
#pragma GCC unroll 16
  for (int n = 0; n < R; ++n)
#pragma GCC unroll 16
    for (int g = 0; g < G; ++g) store(out[n] + g * L, acc[n][g]);
  for (int64_t m = 0; m < count; ++m)
#pragma GCC unroll 16
    for (int n = 0; n < R; ++n) y[m * N + n] = out[n][m];
}

template <int G, int R, class Real>
void tall(int64_t M, int64_t N, int64_t K, const Real* x, const Real* w, const Real* b, Real* y, int threads) {
  constexpr int L = lanes<Real>, P = G * L;
  const int64_t panels = (M + P - 1) / P;
  const auto packed = allocate<Real>(panels * K * P);
  for (int64_t j = 0; j < panels; ++j)
    for (int64_t g = 0; g < G; ++g) {
      const int64_t m = j * P + g * L;
      pack_lanes(x + m * K, K, std::clamp<int64_t>(M - m, 0, L), K, packed.get() + j * K * P + g * L, P);
    }
  parallel(threads, (N + R - 1) / R, [&](int64_t first, int64_t end) {
    row_tiles<R>(first * R, std::min<int64_t>(end * R, N), [&](auto rows_of_w, int64_t n) {
      for (int64_t j = 0; j < panels; ++j)
        rows<rows_of_w, G>(packed.get() + j * K * P, w + n * K, b ? b + n : nullptr, y + j * P * N + n, N, K,
                           std::min<int64_t>(M - j * P, P));
    });
  });
}

}  // namespace

template <class Real>
void linear(int64_t M, int64_t N, int64_t K, const Real* x, const Real* w, const Real* b, Real* y, int threads) {
  threads = threads_for(M * N * K, WorthAThread::multiply_adds, threads);
  if (M > N) wide(M, N, K, x, w, b, y, threads);
  else if (M <= lanes<Real>) tall<1, 12>(M, N, K, x, w, b, y, threads);
  else tall<2, rows_by_two>(M, N, K, x, w, b, y, threads);
}

// The weights of an operation, packed: its outputs are `wide`, in whole panels.
template <class Real>
struct PackedLinear {
  int64_t wide;
  std::shared_ptr<Panels<Real>> panels;
  std::shared_ptr<Buffer<Real>> bias;

  template <class Operation>
  PackedLinear(const Operation& o, int64_t K, Stored stored) : wide((o.N + P - 1) / P * P) {
    auto packed = allocate<Real>(wide * K);
    bias = std::make_shared<Buffer<Real>>(padded_copy(o.b, o.N, o.N, wide));
    for (int64_t n = 0; n < wide; n += L)
      pack_lanes(o.w + n * K, K, std::clamp<int64_t>(o.N - n, 0, L), K, packed.get() + n / P * P * K + n % P, P);
    panels = std::make_shared<Panels<Real>>(std::move(packed), wide / P, K, 2, stored);
  }

  int64_t parts() const { return wide / P; }
  void run(int64_t left, int64_t right, int64_t rows, const Real* x, int64_t ldx, Real* y) const {
    const Start<Real> start{bias->get(), 0};
    panels->template run<2>(left, right, rows, x, ldx, &start, y, wide);
  }

 private:
  static constexpr int64_t L = lanes<Real>, P = 2 * L;
};

template <class Real>
int append(Program<Real>& program, const LinearOperation<Real>& o) {
  auto& steps = Steps<Real>::of(program);
  const int64_t K = steps.width(o.x);
  const PackedLinear<Real> product(o, K, steps.stored());
  const int y = steps.slot(o.N, product.wide);
  steps.made_of(o.x, y, product.parts(),
                [=](int64_t rows, int64_t left, int64_t right, const Real* from, int64_t ldx, Real* to) {
                  product.run(left, right, rows, from, ldx, to);
                });
  steps.costs(product.wide * K);
  return y;
}

// The windows of a row are rows of one product: they overlap where `stride` is less than K.
template <class Real>
int append(Program<Real>& program, const WindowsOperation<Real>& o) {
  auto& steps = Steps<Real>::of(program);
  const int64_t N = o.N, stride = o.stride, count = (steps.width(o.x) - o.K) / stride + 1;
  const PackedLinear<Real> product(o, o.K, steps.stored());
  const int x = o.x, padded = steps.slot(count * product.wide);
  steps.each_row([=](Workspace<Real>& w, int64_t row) {
    product.run(0, product.parts(), count, w.at(x, row), stride, w.at(padded, row));
  });
  steps.costs(count * product.wide * o.K);
  if (product.wide == N) return padded;
  const int y = steps.slot(count * N);
  steps.each_row([=](Workspace<Real>& w, int64_t row) {
    for (int64_t i = 0; i < count; ++i) copy_numbers(w.at(padded, row) + i * product.wide, w.at(y, row) + i * N, N);
  });
  return y;
}

template Linear<float> linear<float>;
template Linear<double> linear<double>;
ELMAN_APPEND(LinearOperation)
ELMAN_APPEND(WindowsOperation)

}  // namespace elman::ELMAN_NS
