// A program of small steps on B rows, packed once and run on one thread for every input that arrives: kernels.h says what
// each step does. They call or repeat the kernels of a scan, product by product and lane by lane, so the bits are the same.
#include <functional>
#include <memory>
#include <vector>

#include "blocks.h"
#include "gated.h"
#include "kernels.h"

namespace elman::ELMAN_NS {

template <class T> LinearScan<T> linear_scan;
template <class T> LinearScan<T> complex_scan;
template <class T> Norm<T> norm;
template <class T> Elementwise<T> sigmoid;
template <class T> Elementwise<T> tanh;
template <class T> Elementwise<T> softplus;
template <class T> Elementwise<T> silu;

namespace {

constexpr int panel = 4;  // vectors of neighbouring columns in a block of a linear map

template <class T>
int64_t padded(int64_t width) {
  constexpr int64_t unit = panel * lanes<T>;
  return (width + unit - 1) / unit * unit;
}

template <class T>
struct Array {
  int64_t width, stride;
  Buffer<T> data;
};

// One step of a gated cell. Gates of u, and the units of every array here, are padded, so that all blocks are full.
template <class Cell, class T>
class Step {
  static constexpr int L = lanes<T>;

 public:
  Step(bool relu, int64_t B, int64_t H, int64_t stride, const T* w, const T* extra, int64_t extra_size)
      : relu_(relu), B_(B), H_(H), stride_(stride), blocks_((H + L - 1) / L) {
    if (Cell::first > 0) first_ = pack(w, 0, Cell::first);
    if (Cell::second > 0) second_ = pack(w, Cell::first, Cell::second);
    extra_ = zeros(stride);
    for (int64_t i = 0; i < H && extra; ++i) extra_[i] = extra[extra_size == 1 ? 0 : i];
    next_ = zeros(B * stride);
    q_ = zeros(B * stride);
    z_ = zeros(B * stride);
    scratch_ = zeros(B * 12 * L);
  }

  // u (B, gates * stride), h and c (B, stride), both updated
  void operator()(const T* u, T* h, T* c) {
    if constexpr (Cell::second > 0) {
      sweep<Cell::first, false>(u, 0, first_.get(), h, h, c);
      sweep<Cell::second, true>(u, Cell::first, second_.get(), q_.get(), h, c);
    } else {
      sweep<Cell::first, true>(u, 0, first_.get(), h, h, c);
    }
    std::memcpy(h, next_.get(), B_ * stride_ * sizeof(T));
  }

 private:
  static Buffer<T> zeros(int64_t n) {
    auto p = allocate<T>(n);
    std::memset(p.get(), 0, n * sizeof(T));
    return p;
  }

  Buffer<T> pack(const T* w, int gate, int G) {
    auto packed = allocate<T>(blocks_ * H_ * G * L);
    for (int64_t j = 0; j < blocks_; ++j)
      for (int g = 0; g < G; ++g)
        pack_lanes(w + ((gate + g) * H_ + j * L) * H_, H_, std::min<int64_t>(L, H_ - j * L), H_,
                   packed.get() + (j * H_ * G + g) * L, G * L);
    return packed;
  }

  template <int G, bool last>
  void sweep(const T* u, int gate, const T* packed, const T* x, const T* h, T* c) {
    if constexpr (G == 0) {
      for (int64_t j = 0; j < blocks_; ++j) finish<1, last>(u, j, 1, nullptr, h, c);
    } else {
      const Start<T> start{u + gate * stride_, nullptr, Cell::gates * stride_, stride_, L, Cell::shared_last ? extra_.get() : nullptr};
      each_blocks_for<G>(B_, 0, blocks_, [&](auto C, int64_t j) {
        run_blocks<C, G, T>(packed, j, 0, B_, x, stride_, H_, &start, scratch_.get(), C * G * L);
        finish<G, last>(u, j, C, scratch_.get(), h, c);
      });
    }
  }

  template <int G, bool last>
  void finish(const T* u, int64_t j, int blocks, const T* sums, const T* h, T* c) {
    for (int64_t row = 0; row < B_; ++row)
      for (int i = 0; i < blocks; ++i, sums += G * L) {
        Vec<T> a[G];
        for (int g = 0; g < G && Cell::first > 0; ++g) a[g] = load<Vec<T>>(sums + g * L);
        const int64_t at = row * stride_ + (j + i) * L;
        Forward<T> f;
        f.u = u + row * Cell::gates * stride_ + (j + i) * L;
        f.H = stride_;
        f.count = L;
        f.relu = relu_;
        f.extra = load<Vec<T>>(extra_.get() + (j + i) * L);
        f.h = load<Vec<T>>(h + at);
        f.save = nullptr;
        if constexpr (last) {
          if (Cell::has_c) f.c = load<Vec<T>>(c + at);
          if (Cell::second > 0) f.z = load<Vec<T>>(z_.get() + at);
          store(next_.get() + at, Cell::template forward<T>(a, f));
          if (Cell::has_c) store(c + at, f.c);
        } else {
          store(q_.get() + at, Cell::template between<T>(a, f));
          store(z_.get() + at, f.z);
        }
      }
  }

  bool relu_;
  int64_t B_, H_, stride_, blocks_;
  Buffer<T> first_, second_, extra_, next_, q_, z_, scratch_;
};

template <class T>
class Steps final : public Program<T> {
  static constexpr int L = lanes<T>;

 public:
  explicit Steps(int64_t B) : B_(B) {}

  int slot(int64_t width) override { return add(width, padded<T>(width)); }

  void write(int slot, const T* from) override {
    for (int64_t row = 0; row < B_; ++row) std::memcpy(at(slot, row), from + row * width(slot), width(slot) * sizeof(T));
  }

  void read(int slot, T* to) const override {
    for (int64_t row = 0; row < B_; ++row) std::memcpy(to + row * width(slot), at(slot, row), width(slot) * sizeof(T));
  }

  int linear(int x, int64_t N, const T* w, const T* b) override { return product(x, N, 1, w, b); }

  void gated(int kind, int gates, int x, const T* U, const T* b, const T* w, const T* extra, int64_t extra_size, int h,
             int c) override {
    const int u = product(x, width(h), gates, U, b);
    each_cell(kind, [&](auto cell, bool relu) {
      auto step = std::make_shared<Step<decltype(cell), T>>(relu, B_, width(h), slots_[h].stride, w, extra, extra_size);
      const T* from = at(u, 0);
      T *ht = at(h, 0), *ct = c < 0 ? nullptr : at(c, 0);
      steps_.push_back([=] { (*step)(from, ht, ct); });
    });
  }

  void scan(bool is_complex, int a, int b, int h) override {
    const int after = slot(width(h)), last = slot(width(h));
    const int64_t C = is_complex ? width(h) / 2 : width(h);
    const auto kernel = is_complex ? complex_scan<T> : linear_scan<T>;
    steps_.push_back([=] {
      static constexpr int64_t one = 1;
      static constexpr bool no = false;
      for (int64_t row = 0; row < B_; ++row) {
        kernel({1, 1, C}, {at(a, row), 0, 0}, {at(b, row), 0, 0}, at(h, row), &one, &no, at(after, row), at(last, row), 1);
        std::memcpy(at(h, row), at(last, row), width(h) * sizeof(T));
      }
    });
  }

  int map(int function, int x) override {
    const int y = slot(width(x));
    const int64_t n = B_ * slots_[x].stride;
    const T* from = at(x, 0);
    T* to = at(y, 0);
    if (function == 4) {
      steps_.push_back([=] { each(n, [=](int64_t i) { store(to + i, phi<T>(true, load<Vec<T>>(from + i))); }); });
    } else {
      Elementwise<T>* const kernels[] = {sigmoid<T>, tanh<T>, softplus<T>, silu<T>};
      Elementwise<T>* f = kernels[function];
      steps_.push_back([=] { f(n, from, to, 1); });
    }
    return y;
  }

  int combine(int function, int x, int y) override {
    const int z = slot(width(x));
    const int64_t n = B_ * slots_[x].stride;
    const T *a = at(x, 0), *b = at(y, 0);
    T* to = at(z, 0);
    if (function == 0) steps_.push_back([=] { each(n, [=](int64_t i) { store(to + i, Vec<T>(load<Vec<T>>(a + i) + load<Vec<T>>(b + i))); }); });
    else steps_.push_back([=] { each(n, [=](int64_t i) { store(to + i, Vec<T>(load<Vec<T>>(a + i) * load<Vec<T>>(b + i))); }); });
    return z;
  }

  int norm(bool centred, int x, const T* gain, const T* bias, T eps) override {
    const int y = slot(width(x)), g = constant(width(x), gain), b = bias ? constant(width(x), bias) : -1;
    steps_.push_back([=] {
      T mean, scale;
      for (int64_t row = 0; row < B_; ++row)
        ELMAN_NS::norm<T>(1, width(x), at(x, row), at(g, 0), b < 0 ? nullptr : at(b, 0), eps, centred, at(y, row), &mean, &scale, 1);
    });
    return y;
  }

  int constant(int64_t width, const T* values) override {
    const int y = slot(width);
    for (int64_t row = 0; row < B_; ++row) std::memcpy(at(y, row), values, width * sizeof(T));
    return y;
  }

  // Columns [first, first + count) of x into columns [to, to + count) of y.
  void copy(int x, int64_t first, int64_t count, int y, int64_t to) override {
    steps_.push_back([=] {
      for (int64_t row = 0; row < B_; ++row) std::memcpy(at(y, row) + to, at(x, row) + first, count * sizeof(T));
    });
  }

  void run(int in, const T* x, int out, T* y) override {
    write(in, x);
    for (const auto& step : steps_) step();
    read(out, y);
  }

  int64_t rows() const override { return B_; }
  int64_t width(int slot) const override { return slots_[slot].width; }

 private:
  int add(int64_t width, int64_t stride) {
    slots_.push_back({width, stride, allocate<T>(B_ * stride)});
    std::memset(slots_.back().data.get(), 0, B_ * stride * sizeof(T));
    return int(slots_.size()) - 1;
  }

  T* at(int slot, int64_t row) const { return slots_[slot].data.get() + row * slots_[slot].stride; }

  template <class F>
  static void each(int64_t n, const F& f) {
    for (int64_t i = 0; i < n; i += L) f(i);
  }

  // x w^T + b for `gates` times H columns, each gate padded as a slot of H is.
  int product(int x, int64_t H, int gates, const T* w, const T* b) {
    const int64_t K = width(x), stride = padded<T>(H), N = gates * stride, P = panel * L;
    const int y = add(gates == 1 ? H : N, N);
    auto packed = std::make_shared<Buffer<T>>(allocate<T>(N * K));
    auto bias = std::make_shared<Buffer<T>>(allocate<T>(N));
    for (int64_t n = 0; n < N; n += L) {
      const int64_t unit = n % stride, row = n / stride * H + unit, count = std::clamp<int64_t>(H - unit, 0, L);
      pack_lanes(w + row * K, K, count, K, packed->get() + n / P * P * K + n % P, P);
      for (int64_t l = 0; l < L; ++l) (*bias)[n + l] = b && l < count ? b[row + l] : T(0);
    }
    const T* from = at(x, 0);
    const int64_t ldx = slots_[x].stride;
    T* to = at(y, 0);
    steps_.push_back([=, B = B_] {
      const Start<T> start{bias->get(), nullptr, 0, L, P, nullptr};
      each_blocks_for<panel>(B, 0, N / P, [&](auto C, int64_t j) {
        run_blocks<C, panel, T>(packed->get(), j, 0, B, from, ldx, K, &start, to + j * P, N);
      });
    });
    return y;
  }

  int64_t B_;
  std::vector<Array<T>> slots_;
  std::vector<std::function<void()>> steps_;
};

}  // namespace

template <class T>
Program<T>* program(int64_t B) {
  return new Steps<T>(B);
}

template NewProgram<float> program<float>;
template NewProgram<double> program<double>;

}  // namespace elman::ELMAN_NS
