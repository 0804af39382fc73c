// A program of small steps on rows, packed once, from which streams are made (state_rows.h). kernels.h says what each step does.
// They call the kernels of a scan, or a piece that these call too, so the bits are the same.
#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "attention.h"
#include "gated_step.h"
#include "hmm.h"
#include "kernels.h"
#include "philox.h"
#include "state_rows.h"
#include "workspace.h"

namespace elman::ELMAN_NS {

template <class Real> LinearScan<Real> complex_scan;
template <class Real> SelectiveScan<Real> selective_scan;
template <class Real> BankScan<Real> bank_scan;
template <class Real> Convolution<Real> convolution;
template <class Real> Norm<Real> norm;

namespace {

constexpr int64_t one = 1;  // for kernels that take sequences: a length
constexpr bool no = false;  // and no reset

// Few numbers, as a rule: a call of memcpy would take longer than it copies.
template <class Real>
ELMAN_INLINE void copy_numbers(const Real* from, Real* to, int64_t count) {
  int64_t i = 0;
  for (; i + lanes<Real> <= count; i += lanes<Real>) store(to + i, load<Vec<Real>>(from + i));
  for (; i < count; ++i) to[i] = from[i];
}

template <class Real>
class Steps final : public Program<Real> {
  static constexpr int L = lanes<Real>;
  using Work = Workspace<Real>;

 public:
  int slot(int64_t width) override { return add(width, whole(width, L)); }

  int state(int64_t width) override {
    slots_.push_back({Home::state, width, 0, state_row_});
    state_row_ += padded_to_lines(width, sizeof(Real));
    return int(slots_.size()) - 1;
  }

  int constant(int64_t width, const Real* values) override {
    slots_.push_back({Home::constant, width, 0, int64_t(constants_.size())});
    constants_.push_back(padded_copy(values, width, width, whole(width, L)));
    return int(slots_.size()) - 1;
  }

  int lookup(int64_t V, int64_t width, const Real* table) override {
    looked_up_ = slot(width), V_ = V;
    table_ = allocate<Real>(V * width);
    std::memcpy(table_.get(), table, V * width * sizeof(Real));
    steps_.push_back([=, x = looked_up_](Work& w) {
      for (int64_t row = 0; row < w.rows; ++row)
        std::memcpy(w.at(x, row), table_.get() + w.symbols[row] * width, width * sizeof(Real));
    });
    return looked_up_;
  }

  int linear(int x, int64_t N, const Real* w, const Real* b) override {
    constexpr int64_t P = 2 * L;
    const int64_t K = width(x), wide = whole(N, P);
    auto packed = std::make_shared<Buffer<Real>>(allocate<Real>(wide * K));
    auto bias = std::make_shared<Buffer<Real>>(padded_copy(b, N, N, wide));
    for (int64_t n = 0; n < wide; n += L)
      pack_lanes(w + n * K, K, std::clamp<int64_t>(N - n, 0, L), K, packed->get() + n / P * P * K + n % P, P);
    const int y = add(N, wide);
    made_of(x, y, [=](int64_t rows, const Real* from, int64_t ldx, Real* to) {
      const Start<Real> start{bias->get(), 0};
      run_panels<2, Real>(packed->get(), 0, wide / P, rows, from, ldx, K, &start, to, wide);
    });
    work_ += wide * K;
    return y;
  }

  void gated(const GatedWeights<Real>& weights, int x, int fed, const Real* U_fed, int h, int c) override {
    with_cell(weights.kind, [&](auto cell, Phi phi) {
      using Step = GatedStep<decltype(cell), Real>;
      auto step = std::make_shared<Step>(weights, phi);
      const int64_t ldu = step->ldu, units = step->layout.units;
      const Units all{0, step->blocks};
      const int u = add(ldu, ldu), sums = step->separate_sums() ? add(ldu, ldu) : u;
      const int q = add(units, units), z = add(units, units), cells = add(units, units);
      made_of(x, u, [=](int64_t rows, const Real* from, int64_t ldx, Real* to) {
        step->project(rows, all, from, ldx, to);
        for (int64_t row = 0; row < rows && step->normalises_input(); ++row) step->normalise_input(to + row * ldu, nullptr);
      });
      if (fed >= 0) {  // the sum that x has begun goes on, as in attended.cpp
        GatedWeights<Real> more = weights;
        more.D = width(fed), more.U = U_fed, more.b = nullptr;
        auto second = std::make_shared<Step>(more, phi);
        steps_.push_back([=](Work& w) { second->project(w.rows, all, w.at(fed, 0), w.places[fed].stride, w.at(u, 0), true); });
        work_ += ldu * more.D;
      }
      steps_.push_back([=](Work& w) {
        const auto row = [&](int64_t i) {
          return RowStep<Real>{w.at(h, i), w.at(h, i), c < 0 ? nullptr : w.at(c, i), w.at(q, i), w.at(z, i), w.at(cells, i)};
        };
        (*step)(w.rows, all, w.places[h].stride, w.at(u, 0), w.at(sums, 0), row, [] {});
      });
      work_ += ldu * (weights.D + step->R);
    });
  }

  int attend(int query, int weights, const AttendInputs<Real>& memory, int64_t each) override {
    struct Held {
      Buffer<Real> keys, values, v;
      std::vector<int64_t> lengths;
    };
    AttendInputs<Real> m = memory;
    auto held = std::make_shared<Held>();
    const auto copied = [](const Real* from, int64_t n) {
      auto to = allocate<Real>(n);
      if (n > 0) std::memcpy(to.get(), from, n * sizeof(Real));
      return to;
    };
    held->keys = copied(m.keys, m.B * m.S * m.A), held->values = copied(m.values, m.B * m.S * m.M);
    if (m.v) held->v = copied(m.v, m.A);
    held->lengths.assign(m.lengths, m.lengths + m.B);
    m.keys = held->keys.get(), m.values = held->values.get(), m.v = held->v.get(), m.lengths = held->lengths.data();
    const int context = slot(m.M);
    each_row([=, held = held, attention = Attention<Real>(m)](Work& w, int64_t row) {
      attention.forward(w.number(row) / each, w.at(query, row), w.at(weights, row), w.at(context, row));
    });
    work_ += m.S * (m.M + (m.v ? 8 : 1) * m.A);  // a hyperbolic tangent for each
    return context;
  }

  void scan(bool is_complex, int a, int b, int h) override {
    const int64_t C = width(h);
    if (!is_complex) {  // whole vectors: a leaf fills cache lines, and what stands behind its numbers is never read
      each_row([=](Work& w, int64_t row) {
        using V = Vec<Real>;
        const Real *decay = w.at(a, row), *more = w.at(b, row);
        Real* state = w.at(h, row);
        for (int64_t i = 0; i < C; i += L) store(state + i, fma(load<V>(decay + i), load<V>(state + i), load<V>(more + i)));
      });
      return;
    }
    const int after = slot(C);
    each_row([=](Work& w, int64_t row) {
      Real* state = w.at(h, row);
      complex_scan<Real>({{1, 1, C / 2}, {w.at(a, row), 0, 0}, {w.at(b, row), 0, 0}, state, &one, &no},
                         {w.at(after, row), state}, 1);
    });
  }

  int selective(int x, int delta, int64_t N, const Real* A, int B, int C, int h) override {
    const int64_t D = width(x);
    const int y = slot(D), a = constant(D * N, A);
    each_row([=](Work& w, int64_t row) {
      const auto rows = [&](int slot) { return Rows<Real>{w.at(slot, row), 0, 0}; };
      Real* state = w.at(h, row);
      selective_scan<Real>({{1, 1, D}, N, 1, rows(x), rows(delta), w.at(a, 0), rows(B), rows(C), state, &one, &no},
                           {w.at(y, row), state, nullptr}, 1);
    });
    work_ += 16 * D * N;  // an exponential for each
    return y;
  }

  int bank(int x, int64_t N, const Real* a, const Real* b, const Real* c, int h) override {
    const int64_t D = width(x);
    const int y = slot(D), ra = constant(width(h), a), rb = constant(width(h), b), rc = constant(width(h), c);
    const int last = slot(width(h));
    each_row([=](Work& w, int64_t row) {
      Real* state = w.at(h, row);
      bank_scan<Real>({{1, 1, D}, N, 1, {w.at(x, row), 0, 0}, w.at(ra, 0), w.at(rb, 0), w.at(rc, 0), state, &one, &no},
                      {w.at(y, row), w.at(last, row), nullptr}, 1);
      std::memcpy(state, w.at(last, row), width(h) * sizeof(Real));
    });
    work_ += 8 * D * N;
    return y;
  }

  void filter(int x, const Real* transition, int p) override {
    const Width<Real> w(width(p));
    auto a = std::make_shared<Buffer<Real>>(pack(transition, w.K, 1, w, Real(0)));
    steps_.push_back([=](Work& work) {
      Scratch<Real> z(w, 1, false);
      Real log_c, shift, scale;
      for (int64_t row = 0; row < work.rows; ++row) {
        Real* state = work.at(p, row);
        const HmmInputs<Real> in{1, 1, w.K, work.at(x, row), nullptr, nullptr, state, &one, &no};
        filter_row<Real>(in, {&log_c, nullptr, &shift, &scale, state, nullptr}, 0, w, a->get(), z);
      }
    });
    work_ += w.rows * w.padded + 32 * w.padded;  // an exponential for each
  }

  int convolution(int x, int64_t K, const Real* weights, const Real* bias, int window) override {
    const int64_t D = width(x);
    const int y = slot(D), taps = constant(D * K, weights), b = constant(D, bias);
    each_row([=](Work& w, int64_t row) {
      Real* state = w.at(window, row);
      ELMAN_NS::convolution<Real>({{1, 1, D}, K, {w.at(x, row), 0, 0}, w.at(taps, 0), w.at(b, 0), state, &one, &no},
                                  {w.at(y, row), state}, 1);
    });
    return y;
  }

  int map(int function, int x) override {
    using V = Vec<Real>;
    const int y = slot(width(x));
    if (function == 0) each_vector(y, x, x, [](V v, V) { return logistic<Real>(v); });
    else if (function == 1) each_vector(y, x, x, [](V v, V) { return hyperbolic_tangent<Real>(v); });
    else if (function == 2) each_vector(y, x, x, [](V v, V) { return log_one_plus_exp<Real>(v); });
    else if (function == 3) each_vector(y, x, x, [](V v, V) { return V(v * logistic<Real>(v)); });
    else if (function == 4) each_vector(y, x, x, [](V v, V) { return logarithm<Real>(v); });
    else if (function == 5) each_vector(y, x, x, [](V v, V) { return tanh_or_relu<Real>(Phi::relu, v); });
    else each_vector(y, x, x, [](V v, V) { return V(-minus_absolute<Real>(v)); });
    return y;
  }

  int combine(int function, int x, int y) override {
    const int z = slot(width(x));
    if (function == 0) each_vector(z, x, y, [](Vec<Real> a, Vec<Real> b) { return Vec<Real>(a + b); });
    else if (function == 1) each_vector(z, x, y, [](Vec<Real> a, Vec<Real> b) { return Vec<Real>(a * b); });
    else if (function == 2) each_vector(z, x, y, [](Vec<Real> a, Vec<Real> b) { return Vec<Real>(a / b); });
    // A NaN on either side stays one, as in Torch.
    else if (function == 3) each_vector(z, x, y, [](Vec<Real> a, Vec<Real> b) { return (a > b) | (a != a) ? a : b; });
    else each_vector(z, x, y, [](Vec<Real> a, Vec<Real> b) { return (a < b) | (a != a) ? a : b; });
    return z;
  }

  int choose(int condition, int x, int y) override {
    const int z = slot(width(x));
    const int64_t n = width(x);
    each_row([=](Work& w, int64_t row) {
      const Real *c = w.at(condition, row), *a = w.at(x, row), *b = w.at(y, row);
      Real* to = w.at(z, row);
      for (int64_t i = 0; i < n; i += L) {
        using V = Vec<Real>;
        store(to + i, V(load<V>(c + i) > Real(0) ? load<V>(a + i) : load<V>(b + i)));
      }
    });
    return z;
  }

  int gather(int x, const int64_t* columns, int64_t count) override {
    const int y = slot(count);
    const std::vector<int64_t> from(columns, columns + count);
    if (count > 0 && std::count(columns, columns + count, columns[0]) == count)  // one column beside many
      each_row([=, column = columns[0]](Work& w, int64_t row) {
        const Vec<Real> value = splat(w.at(x, row)[column]);
        for (int64_t i = 0; i < count; i += L) store(w.at(y, row) + i, value);
      });
    else
      each_row([=](Work& w, int64_t row) {
        const Real* given = w.at(x, row);
        Real* to = w.at(y, row);
        for (int64_t i = 0; i < count; ++i) to[i] = given[from[i]];
      });
    return y;
  }

  int lags(int x, const int64_t* delays, int64_t count, int past) override {
    const int64_t D = width(x), held = width(past);
    const int y = slot(count * D);
    each_row([=, ago = std::vector<int64_t>(delays, delays + count)](Work& w, int64_t row) {
      const Real* given = w.at(x, row);
      Real *to = w.at(y, row), *state = w.at(past, row);
      for (int64_t i = 0; i < count; ++i) copy_numbers(ago[i] ? state + held - ago[i] * D : given, to + i * D, D);
      if (held == 0) return;
      std::memmove(state, state + D, (held - D) * sizeof(Real));
      copy_numbers(given, state + held - D, D);
    });
    return y;
  }

  // In float, a sum of ones would stay at 2^24.
  int mean(double decay, int x, int weight, int sum, int total) override {
    constexpr int64_t each = sizeof(double) / sizeof(Real);
    const int64_t C = width(x), W = width(weight);
    const int y = slot(C);
    each_row([=](Work& w, int64_t row) {
      const Real *more = w.at(x, row), *weights = w.at(weight, row);
      Real *sums = w.at(sum, row), *totals = w.at(total, row), *to = w.at(y, row);
      for (int64_t i = 0; i < W; ++i) store(totals + i * each, fma(decay, load<double>(totals + i * each), double(weights[i])));
      for (int64_t i = 0; i < C; ++i) {
        const double s = fma(decay, load<double>(sums + i * each), double(more[i]));
        const double t = load<double>(totals + (W == 1 ? 0 : i) * each);
        store(sums + i * each, s);
        to[i] = t > 0 ? Real(s / t) : Real(0);
      }
    });
    return y;
  }

  int norm(bool centred, int x, const Real* gain, const Real* bias, double eps) override {
    const int64_t N = width(x);
    const int y = slot(N), g = constant(N, gain), b = bias ? constant(N, bias) : -1;
    each_row([=](Work& w, int64_t row) {
      Real mean, scale;
      ELMAN_NS::norm<Real>({1, N, w.at(x, row), w.at(g, 0), b < 0 ? nullptr : w.at(b, 0), eps, centred},
                           {w.at(y, row), &mean, &scale}, 1);
    });
    return y;
  }

  // Columns [first, first + count) of x into columns [to, to + count) of y.
  void copy(int x, int64_t first, int64_t count, int y, int64_t to) override {
    each_row([=](Work& w, int64_t row) { copy_numbers(w.at(x, row) + first, w.at(y, row) + to, count); });
  }

  // Where they lie, but of a state, which changes, and of what symbols name, which products remember by its slot.
  int cut(int x, int64_t first, int64_t count) override {
    if (slots_[x].home == Home::state || x == looked_up_) {
      const int y = slot(count);
      copy(x, first, count, y, 0);
      return y;
    }
    Slot view = slots_[x];
    view.width = count, view.offset += first;
    slots_.push_back(view);
    return int(slots_.size()) - 1;
  }

  int student_t(int df, int mean, int scale) override {
    const int64_t D = width(df);
    const int y = slot(D);
    each_row([=](Work& w, int64_t row) {
      const Real *nu = w.at(df, row), *m = w.at(mean, row), *s = w.at(scale, row);
      Real* to = w.at(y, row);
      for (int64_t d = 0; d < D; ++d)
        to[d] = Real(double(m[d]) + double(s[d]) * elman::student_t(w.draws + 2 * row, D, d, double(nu[d])));
    });
    draws_ = true;
    return y;
  }

  void finish(int in, int out) override { in_ = in, out_ = out; }
  std::unique_ptr<Stream<Real>> stream(int64_t B) override;
  int64_t width(int slot) const override { return slots_[slot].width; }
  int64_t state_begin(int slot) const override { return slots_[slot].begin; }

  // For the stream.
  int in() const { return in_; }
  int out() const { return out_; }
  int64_t symbols() const { return in_ == looked_up_ ? V_ : 0; }
  int64_t state_row() const { return state_row_; }
  int64_t work() const { return work_; }  // multiply-adds of a row, or about
  bool draws() const { return draws_; }

  Work workspace(int64_t rows) const {
    Work w;
    w.arrays = zeros<Real>((rows + 1) * workspace_row_);  // whole rows of some columns are read past the last row
    for (const Slot& slot : slots_) {
      if (slot.home == Home::constant) w.places.push_back({constants_[slot.begin].get() + slot.offset, 0});
      else if (slot.home == Home::state) w.places.push_back({nullptr, state_row_});
      else w.places.push_back({w.arrays.get() + rows * slot.begin + slot.offset, slot.stride});
    }
    return w;
  }

  void learn(const int64_t* symbols, int64_t count) const {
    for (const auto& table : remembered_) table->learn(symbols, count);
  }

  // One step of w.rows rows, whose states begin at `states`.
  void run(Work& w, Real* states) const {
    for (size_t i = 0; i < slots_.size(); ++i)
      if (slots_[i].home == Home::state) w.places[i].begin = states + slots_[i].begin;
    for (const auto& step : steps_) step(w);
  }

 private:
  static int64_t whole(int64_t width, int64_t unit) { return (width + unit - 1) / unit * unit; }

  int add(int64_t width, int64_t stride) {
    slots_.push_back({Home::workspace, width, stride, workspace_row_});
    workspace_row_ += stride;
    return int(slots_.size()) - 1;
  }

  template <class F>
  void each_row(const F& f) {
    steps_.push_back([=](Work& w) {
      for (int64_t row = 0; row < w.rows; ++row) f(w, row);
    });
  }

  // f(w, row, n) for n numbers of y, of a and of b from that row on: of all rows at once, where all three lie alike.
  template <class F> void each_stretch(int y, int a, int b, const F& f) {
    const int64_t n = width(y), stride = slots_[y].stride;
    const auto alike = [&](int x) { return slots_[x].home == Home::workspace && slots_[x].stride == stride; };
    if (alike(a) && alike(b)) steps_.push_back([=](Work& w) { f(w, 0, w.rows * stride); });
    else each_row([=](Work& w, int64_t row) { f(w, row, n); });
  }

  // y = f(a, b), a vector at a time
  template <class F> void each_vector(int y, int a, int b, const F& f) {
    each_stretch(y, a, b, [=](Work& w, int64_t row, int64_t n) {
      const Real *from = w.at(a, row), *other = w.at(b, row);
      Real* to = w.at(y, row);
      for (int64_t i = 0; i < n; i += L) store(to + i, f(load<Vec<Real>>(from + i), load<Vec<Real>>(other + i)));
    });
  }

  // y = f(x) by rows: f(rows, x, ldx, y), the rows of y as far apart as the slot has them.
  template <class F>
  void made_of(int x, int y, const F& f) {
    const int64_t N = slots_[y].stride;
    if (x != looked_up_ || V_ * N > largest_table) {
      steps_.push_back([=](Work& w) { f(w.rows, w.at(x, 0), w.places[x].stride, w.at(y, 0)); });
      return;
    }
    const int64_t D = width(x);
    auto table = std::make_shared<Remembered<Real>>(
        V_, N, [=](int64_t symbol, Real* line) { f(1, table_.get() + symbol * D, D, line); });
    remembered_.push_back(table);
    each_row([=](Work& w, int64_t row) { std::memcpy(w.at(y, row), table->line(w.symbols[row]), N * sizeof(Real)); });
  }

  int in_ = -1, out_ = -1, looked_up_ = -2;
  bool draws_ = false;
  int64_t V_ = 0, state_row_ = 0, workspace_row_ = 0, work_ = 0;
  Buffer<Real> table_;
  std::vector<Slot> slots_;
  std::vector<Buffer<Real>> constants_;
  std::vector<std::shared_ptr<Remembered<Real>>> remembered_;
  std::vector<std::function<void(Work&)>> steps_;
};

template <class Real>
std::unique_ptr<Stream<Real>> Steps<Real>::stream(int64_t B) {
  return std::make_unique<StateRows<Steps<Real>, Real>>(*this, B);
}

}  // namespace

template <class Real>
Program<Real>* program() {
  return new Steps<Real>();
}

template NewProgram<float> program<float>;
template NewProgram<double> program<double>;

}  // namespace elman::ELMAN_NS
