// A program of small steps on B rows, packed once and run on one thread for every input that arrives: kernels.h says what
// each step does. They call the kernels of a scan, or a piece that these call too, so the bits are the same.
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#include "gated_step.h"
#include "kernels.h"

namespace elman::ELMAN_NS {

template <class T> LinearScan<T> linear_scan;
template <class T> LinearScan<T> complex_scan;
template <class T> SelectiveScan<T> selective_scan;
template <class T> Convolution<T> convolution;
template <class T> Norm<T> norm;
template <class T> Elementwise<T> sigmoid;
template <class T> Elementwise<T> tanh;
template <class T> Elementwise<T> softplus;
template <class T> Elementwise<T> silu;

namespace {

// To whole panels of two vectors, four at a time.
template <class T>
int64_t padded(int64_t width) {
  constexpr int64_t unit = 4 * lanes<T>;
  return (width + unit - 1) / unit * unit;
}

template <class T>
struct Array {
  int64_t width, stride;
  Buffer<T> data;
};

constexpr int64_t largest_table = 1 << 22;  // numbers that a stream may remember of its symbols
constexpr int64_t one = 1;                  // for kernels that take sequences: a length
constexpr bool no = false;                  // and no reset

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

  int lookup(int64_t V, int64_t width, const T* table) override {
    looked_up_ = slot(width), symbols_.assign(B_, 0), V_ = V;
    auto rows = std::make_shared<Buffer<T>>(allocate<T>(V * width));
    std::memcpy(rows->get(), table, V * width * sizeof(T));
    steps_.push_back([=, x = looked_up_] {
      for (int64_t row = 0; row < B_; ++row) std::memcpy(at(x, row), rows->get() + symbols_[row] * width, width * sizeof(T));
    });
    return looked_up_;
  }

  int linear(int x, int64_t N, const T* w, const T* b) override {
    constexpr int64_t P = 2 * L;
    const int64_t K = width(x), wide = padded<T>(N);
    auto packed = std::make_shared<Buffer<T>>(allocate<T>(wide * K));
    auto bias = std::make_shared<Buffer<T>>(padded_copy(b, N, N, wide));
    for (int64_t n = 0; n < wide; n += L)
      pack_lanes(w + n * K, K, std::clamp<int64_t>(N - n, 0, L), K, packed->get() + n / P * P * K + n % P, P);
    const int y = add(N, wide);
    made_of(x, y, [=](int64_t rows, const T* from, int64_t ldx, T* to) {
      const Start<T> start{bias->get(), 0};
      run_panels<2, T>(packed->get(), 0, wide / P, rows, from, ldx, K, &start, to, wide);
    });
    return y;
  }

  void gated(const GatedWeights<T>& weights, int x, int h, int c) override {
    with_cell(weights.kind, [&](auto cell, Phi phi) {
      auto step = std::make_shared<GatedStep<decltype(cell), T>>(weights, phi);
      const int64_t ldu = step->ldu, units = step->layout.units;
      const Units all{0, step->blocks};
      const int u = add(ldu, ldu), sums = step->separate_sums() ? add(ldu, ldu) : u;
      const int q = add(units, units), z = add(units, units), cells = add(units, units);
      made_of(x, u, [=](int64_t rows, const T* from, int64_t ldx, T* to) {
        step->project(rows, all, from, ldx, to);
        for (int64_t row = 0; row < rows && step->normalises_input(); ++row) step->normalise_input(to + row * ldu, nullptr);
      });
      steps_.push_back([=] {
        const auto row = [&](int64_t i) {
          return RowStep<T>{at(h, i), at(h, i), c < 0 ? nullptr : at(c, i), at(q, i), at(z, i), at(cells, i)};
        };
        (*step)(B_, all, slots_[h].stride, at(u, 0), at(sums, 0), row, [] {});
      });
    });
  }

  void scan(bool is_complex, int a, int b, int h) override {
    const int after = slot(width(h)), last = slot(width(h));
    const int64_t C = is_complex ? width(h) / 2 : width(h);
    const auto kernel = is_complex ? complex_scan<T> : linear_scan<T>;
    steps_.push_back([=] {
      for (int64_t row = 0; row < B_; ++row) {
        kernel({{1, 1, C}, {at(a, row), 0, 0}, {at(b, row), 0, 0}, at(h, row), &one, &no}, {at(after, row), at(last, row)}, 1);
        std::memcpy(at(h, row), at(last, row), width(h) * sizeof(T));
      }
    });
  }

  int selective(int x, int delta, int64_t N, const T* A, int B, int C, int h) override {
    const int y = slot(width(x)), a = constant(width(x) * N, A), last = slot(width(h));
    steps_.push_back([=] {
      for (int64_t row = 0; row < B_; ++row) {
        const Rows<T> v{at(x, row), 0, 0}, dt{at(delta, row), 0, 0}, b{at(B, row), 0, 0}, c{at(C, row), 0, 0};
        selective_scan<T>({{1, 1, width(x)}, N, 1, v, dt, at(a, 0), b, c, at(h, row), &one, &no}, {at(y, row), at(last, row), nullptr}, 1);
        std::memcpy(at(h, row), at(last, row), width(h) * sizeof(T));
      }
    });
    return y;
  }

  int convolution(int x, int64_t K, const T* w, const T* bias, int window) override {
    const int y = slot(width(x)), taps = constant(width(x) * K, w), b = constant(width(x), bias), last = slot(width(window));
    steps_.push_back([=] {
      for (int64_t row = 0; row < B_; ++row) {
        ELMAN_NS::convolution<T>({{1, 1, width(x)}, K, {at(x, row), 0, 0}, at(taps, 0), at(b, 0), at(window, row), &one, &no},
                                 {at(y, row), at(last, row)}, 1);
        std::memcpy(at(window, row), at(last, row), width(window) * sizeof(T));
      }
    });
    return y;
  }

  int map(int function, int x) override {
    const int y = slot(width(x));
    const int64_t n = B_ * slots_[x].stride;
    const T* from = at(x, 0);
    T* to = at(y, 0);
    if (function == 4) {
      steps_.push_back([=] { each(n, [=](int64_t i) { store(to + i, tanh_or_relu<T>(Phi::relu, load<Vec<T>>(from + i))); }); });
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

  int norm(bool centred, int x, const T* gain, const T* bias, double eps) override {
    const int y = slot(width(x)), g = constant(width(x), gain), b = bias ? constant(width(x), bias) : -1;
    steps_.push_back([=] {
      T mean, scale;
      for (int64_t row = 0; row < B_; ++row)
        ELMAN_NS::norm<T>({1, width(x), at(x, row), at(g, 0), b < 0 ? nullptr : at(b, 0), eps, centred}, {at(y, row), &mean, &scale}, 1);
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
    run(out, y);
  }

  void run_symbols(int in, const int64_t* symbols, int out, T* y) override {
    if (in != looked_up_) throw std::invalid_argument("native stream: the input is no lookup.");
    for (int64_t row = 0; row < B_; ++row)
      if (symbols[row] < 0 || symbols[row] >= V_) throw std::out_of_range("native stream: a symbol is outside the table.");
    std::copy_n(symbols, B_, symbols_.begin());
    run(out, y);
  }

  int64_t rows() const override { return B_; }
  int64_t width(int slot) const override { return slots_[slot].width; }

 private:
  void run(int out, T* y) {
    for (const auto& step : steps_) step();
    read(out, y);
  }

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

  // y = f(x) by rows: f(rows, x, ldx, y), the rows of y as far apart as the slot has them. Of a symbol that is made when it first
  // comes, and copied from then on.
  template <class F>
  void made_of(int x, int y, const F& f) {
    const int64_t N = slots_[y].stride, ldx = slots_[x].stride;
    if (x != looked_up_ || V_ * N > largest_table) {
      steps_.push_back([=] { f(B_, at(x, 0), ldx, at(y, 0)); });
      return;
    }
    auto table = std::make_shared<Buffer<T>>(allocate<T>(V_ * N));
    auto known = std::make_shared<std::vector<bool>>(V_, false);
    steps_.push_back([=] {
      for (int64_t row = 0; row < B_; ++row) {
        const int64_t symbol = symbols_[row];
        T* line = table->get() + symbol * N;
        if (!(*known)[symbol]) f(1, at(x, row), ldx, line), (*known)[symbol] = true;
        std::memcpy(at(y, row), line, N * sizeof(T));
      }
    });
  }

  int64_t B_, V_ = 0;
  int looked_up_ = -1;
  std::vector<int64_t> symbols_;
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
