// A program of small steps on B rows, packed once and run on one thread for every input that arrives: kernels.h says what
// each step does. They call or repeat the kernels of a scan, product by product and lane by lane, so the bits are the same.
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#include "blocks.h"
#include "gated.h"
#include "gated_norm.h"
#include "kernels.h"

namespace elman::ELMAN_NS {

template <class T> LinearScan<T> linear_scan;
template <class T> LinearScan<T> complex_scan;
template <class T> SelectiveScan<T> selective_scan;
template <class T> BankScan<T> bank_scan;
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

// One step of a gated cell, as Run in gated.cpp takes it. u has the gates of a block of units side by side, those of the second
// product behind the others; so has the bias, where it is not in u already but U x is normalised first.
template <class Cell, class T>
class Step {
  static constexpr int L = lanes<T>, before = Cell::gates - Cell::second;

 public:
  // h (B, stride_h), R wide; c and the units (B, stride), H wide
  Step(bool relu, int64_t B, int64_t H, int64_t R, int64_t stride, int64_t stride_h, const T* w, const T* extra,
       int64_t extra_size, const GatedOptions<const T>& with, Buffer<T> bias)
      : relu_(relu), B_(B), H_(H), R_(R), stride_(stride), stride_h_(stride_h), blocks_((H + L - 1) / L), ldu_(Cell::gates * stride),
        bias_(std::move(bias)) {
    if constexpr (Cell::first > 0) first_ = pack_gates<Cell::first>(w, H, R, 0);
    if constexpr (Cell::second > 0) second_ = pack_gates<Cell::second>(w, H, R, Cell::first);
    extra_ = padded_copy(extra, extra_size, H, stride);
    nothing_ = zeros<T>(std::max(ldu_, stride_h));
    next_ = zeros<T>(B * std::max(stride, stride_h));
    if (Cell::second > 0) q_ = zeros<T>(B * stride), z_ = zeros<T>(B * stride);
    if (Cell::shared_last || with.gain) sums_ = zeros<T>(B * ldu_);
    if (with.peephole) peephole_ = padded_rows(with.peephole, Cell::gates - 1, H, stride);
    if (with.gain) gain_ = padded_rows(with.gain, Cell::gates, H, stride);
    if (with.gain_U) gain_U_ = padded_rows(with.gain_U, Cell::gates, H, stride);
    if (with.gain_c) gain_c_ = padded_rows(with.gain_c, 1, H, stride), bias_c_ = padded_rows(with.bias_c, 1, H, stride);
    if (with.P) P_ = pack_gates<1>(with.P, R, H, 0);
  }

  // u (B, gates * stride), overwritten; h and c updated
  void operator()(T* u, T* h, T* c) {
    if (gain_U_)
      for (int64_t row = 0; row < B_; ++row) normalise<0, Cell::gates>(u + row * ldu_, bias_.get(), gain_U_.get(), nullptr);
    T* sums = sums_ ? sums_.get() : u;
    const Start<T> zero{nothing_.get(), 0}, shared{u, ldu_, extra_.get()};
    if constexpr (Cell::first > 0) {
      constexpr int P = panel<Cell::first>;
      run_panels<P>(first_.get(), 0, blocks_ * (Cell::first / P), B_, h, stride_h_, R_,
                    gain_ ? &zero : Cell::shared_last ? &shared : nullptr, sums, ldu_);
      normalise_sums<0, Cell::first>(u, sums);
    }
    if constexpr (Cell::second > 0) {
      finish<Cell::first, false>(u, sums, h, c);
      T* rest = sums + before * stride_;
      run_panels<Cell::second, T>(second_.get(), 0, blocks_, B_, q_.get(), stride_, H_, gain_ ? &zero : nullptr, rest, ldu_);
      normalise_sums<Cell::first, Cell::gates>(u, sums);
      finish<Cell::second, true>(u, rest, h, c);
    } else {
      finish<before, true>(u, sums, h, c);
    }
    if (P_) run_panels<1, T>(P_.get(), 0, (R_ + L - 1) / L, B_, next_.get(), stride_, H_, &zero, h, stride_h_);
    else std::memcpy(h, next_.get(), B_ * stride_ * sizeof(T));
  }

 private:
  // Where gate g of block j is in a row of u or of the sums
  int64_t gate(int64_t j, int g) const {
    return g < before ? (j * before + g) * L : before * stride_ + (j * Cell::second + g - before) * L;
  }

  // Gates [a, b) of a row, which go on from another row, but the last of them from `shared` where that is given.
  template <int a, int b>
  void normalise(T* row, const T* from, const T* gain, const T* shared) const {
    const auto start = [&](int64_t j, int g) {
      return load<Vec<T>>(shared && g == Cell::gates - 1 ? shared + j * L : from + gate(j, g));
    };
    normalise_gates<Cell, a, b>(H_, row, [&](int64_t j, int g) { return gate(j, g); }, start, gain, stride_, SavedNorm<T>{});
  }

  template <int a, int b>
  void normalise_sums(const T* u, T* sums) const {
    for (int64_t row = 0; row < B_ && gain_; ++row)
      normalise<a, b>(sums + row * ldu_, u + row * ldu_, gain_.get(), Cell::shared_last ? extra_.get() : nullptr);
  }

  template <int G, bool last>
  void finish(const T* u, const T* sums, const T* h, T* c) {
    for (int64_t row = 0; row < B_; ++row, u += ldu_, sums += ldu_) {
      for (int64_t j = 0; j < blocks_; ++j) {
        Vec<T> a[G];
        for (int g = 0; g < G; ++g) a[g] = load<Vec<T>>(sums + (j * G + g) * L);
        const int64_t at = row * stride_ + j * L;
        Forward<T> f;
        f.u = u + j * before * L;
        f.relu = relu_;
        f.normed = bool(gain_c_);
        f.peephole = peephole_ ? peephole_.get() + j * L : nullptr;
        f.stride = stride_;
        f.extra = load<Vec<T>>(extra_.get() + j * L);
        f.h = Cell::has_c ? Vec<T>{} : load<Vec<T>>(h + at);
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
      if (last && gain_c_) through_norm(H_, c + row * stride_, gain_c_.get(), bias_c_.get(), next_.get() + row * stride_, (T*)nullptr);
    }
  }

  bool relu_;
  int64_t B_, H_, R_, stride_, stride_h_, blocks_, ldu_;
  Buffer<T> bias_, first_, second_, extra_, nothing_, next_, q_, z_, sums_, peephole_, gain_, gain_U_, gain_c_, bias_c_, P_;
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
    return product(x, N, padded<T>(N), w, b, [=](int64_t n) { return std::pair(n, N - n); });
  }

  void gated(int kind, int gates, int x, const T* U, const T* b, const T* w, const T* extra, int64_t extra_size,
             const GatedOptions<const T>& with, int h, int c) override {
    const int units = with.P ? c : h;  // as many as h has, unless it is projected
    const int64_t H = width(units), stride = slots_[units].stride, R = width(h), stride_h = slots_[h].stride;
    each_cell(kind, [&](auto cell, bool relu) {
      using Cell = decltype(cell);
      constexpr int64_t before = Cell::gates - Cell::second;  // the others lie behind these
      const auto where = [=](int64_t n) {
        const int64_t v = n / L, late = v - before * stride / L, j = late < 0 ? v / before : late / std::max(Cell::second, 1);
        const int64_t gate = late < 0 ? v % before : before + late % std::max(Cell::second, 1);
        return std::pair(gate * H + j * L, H - j * L);
      };
      const int u = product(x, gates * stride, gates * stride, U, with.gain_U ? nullptr : b, where);
      auto bias = with.gain_U ? arranged(gates * stride, b, where) : Buffer<T>();
      auto step = std::make_shared<Step<Cell, T>>(relu, B_, H, R, stride, stride_h, w, extra, extra_size, with, std::move(bias));
      T *from = at(u, 0), *ht = at(h, 0), *ct = c < 0 ? nullptr : at(c, 0);
      steps_.push_back([=] { (*step)(from, ht, ct); });
    });
  }

  void scan(bool is_complex, int a, int b, int h) override {
    const int after = slot(width(h)), last = slot(width(h));
    const int64_t C = is_complex ? width(h) / 2 : width(h);
    const auto kernel = is_complex ? complex_scan<T> : linear_scan<T>;
    steps_.push_back([=] {
      for (int64_t row = 0; row < B_; ++row) {
        kernel({1, 1, C}, {at(a, row), 0, 0}, {at(b, row), 0, 0}, at(h, row), &one, &no, at(after, row), at(last, row), 1);
        std::memcpy(at(h, row), at(last, row), width(h) * sizeof(T));
      }
    });
  }

  int selective(int x, int delta, int64_t N, const T* A, int B, int C, int h) override {
    const int y = slot(width(x)), a = constant(width(x) * N, A), last = slot(width(h));
    steps_.push_back([=] {
      for (int64_t row = 0; row < B_; ++row) {
        const Rows<T> v{at(x, row), 0, 0}, dt{at(delta, row), 0, 0}, b{at(B, row), 0, 0}, c{at(C, row), 0, 0};
        selective_scan<T>({{1, 1, width(x)}, N, 1, v, dt, at(a, 0), b, c, at(h, row), &one, &no}, at(y, row), at(last, row), nullptr, 1);
        std::memcpy(at(h, row), at(last, row), width(h) * sizeof(T));
      }
    });
    return y;
  }

  int bank(int x, int64_t N, const T* a, const T* b, const T* c, int h) override {
    const int y = slot(width(x)), ra = constant(width(h), a), rb = constant(width(h), b), rc = constant(width(h), c);
    const int last = slot(width(h));
    steps_.push_back([=] {
      for (int64_t row = 0; row < B_; ++row) {
        bank_scan<T>({{1, 1, width(x)}, N, 1, {at(x, row), 0, 0}, at(ra, 0), at(rb, 0), at(rc, 0), at(h, row), &one, &no},
                     {at(y, row), at(last, row), nullptr}, 1);
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
                                 at(y, row), at(last, row), 1);
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

  // x w^T + b, N columns in a slot `width` wide. where(n) says which row of w the column n, the first of a vector, is made
  // from, and how many rows there are from there on.
  template <class F>
  int product(int x, int64_t width, int64_t N, const T* w, const T* b, const F& where) {
    constexpr int64_t P = 2 * L;
    const int64_t K = this->width(x);
    const int y = add(width, N);
    auto packed = std::make_shared<Buffer<T>>(allocate<T>(N * K));
    auto bias = std::make_shared<Buffer<T>>(arranged(N, b, where));
    for (int64_t n = 0; n < N; n += L) {
      const auto [row, rest] = where(n);
      pack_lanes(w + row * K, K, std::clamp<int64_t>(rest, 0, L), K, packed->get() + n / P * P * K + n % P, P);
    }
    const T* from = at(x, 0);
    const int64_t ldx = slots_[x].stride;
    T* to = at(y, 0);
    const auto rows = [=](int64_t first, int64_t count, T* into) {
      const Start<T> start{bias->get(), 0};
      run_panels<2, T>(packed->get(), 0, N / P, count, from + first * ldx, ldx, K, &start, into, N);
    };
    if (x == looked_up_ && V_ * N <= largest_table) steps_.push_back(remembered(N, to, rows));
    else steps_.push_back([=, B = B_] { rows(0, B, to); });
    return y;
  }

  // b as the columns of a product lie, zeros where there is none.
  template <class F>
  static Buffer<T> arranged(int64_t N, const T* b, const F& where) {
    auto to = zeros<T>(N);
    for (int64_t n = 0; n < N && b; n += L) {
      const auto [row, rest] = where(n);
      if (rest > 0) std::memcpy(to.get() + n, b + row, std::min<int64_t>(rest, L) * sizeof(T));
    }
    return to;
  }

  // What rows(row, 1, to) makes of a symbol, a line of N, made when it first comes and copied from then on.
  template <class F>
  std::function<void()> remembered(int64_t N, T* to, const F& rows) {
    auto table = std::make_shared<Buffer<T>>(allocate<T>(V_ * N));
    auto known = std::make_shared<std::vector<bool>>(V_, false);
    return [=] {
      for (int64_t row = 0; row < B_; ++row) {
        const int64_t symbol = symbols_[row];
        T* line = table->get() + symbol * N;
        if (!(*known)[symbol]) rows(row, 1, line), (*known)[symbol] = true;
        std::memcpy(to + row * N, line, N * sizeof(T));
      }
    };
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
