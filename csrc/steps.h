// A program while it is described: its slots, and the steps that fill them, which run in the order in which they were added.
//
// The file of a family appends its operations: append(program, operation) makes the slots that it needs and adds what is to be
// done with the rows of a workspace. A step calls the kernel of a scan, or a piece that this calls too, so the bits are the same.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "kernels.h"
#include "parallel.h"
#include "simd.h"
#include "workspace.h"

namespace elman::ELMAN_NS {

constexpr int64_t one_step = 1;   // for kernels that take sequences: a length
constexpr bool no_reset = false;  // and no reset

// Few numbers, as a rule: a call of memcpy would take longer than it copies.
template <class Real>
ELMAN_INLINE void copy_numbers(const Real* from, Real* to, int64_t count) {
  int64_t i = 0;
  for (; i + lanes<Real> <= count; i += lanes<Real>) store(to + i, load<Vec<Real>>(from + i));
  for (; i < count; ++i) to[i] = from[i];
}

// What a member of a team has of `parts`.
ELMAN_INLINE std::pair<int64_t, int64_t> share(int64_t parts, const Member& member) {
  return {parts * member.thread / member.threads, parts * (member.thread + 1) / member.threads};
}

template <class Real>
class Steps final : public Program<Real> {
  static constexpr int L = lanes<Real>;

 public:
  using Work = Workspace<Real>;

  static Steps& of(Program<Real>& program) { return static_cast<Steps&>(program); }

  // Slots: in whole vectors, or with rows `stride` numbers apart.
  int slot(int64_t width) override { return slot(width, (width + L - 1) / L * L); }
  int slot(int64_t width, int64_t stride) {
    workspace_row_ += stride;
    return add_slot({Home::workspace, width, stride, workspace_row_ - stride});
  }
  int state(int64_t width) override {
    const int64_t begin = state_row_;
    state_row_ += padded_to_lines(width, sizeof(Real));
    return add_slot({Home::state, width, 0, begin});
  }
  int constant(int64_t width, const Real* values) {
    constants_.push_back(padded_copy(values, width, width, (width + L - 1) / L * L));
    return add_slot({Home::constant, width, 0, int64_t(constants_.size()) - 1});
  }
  int lookup(int64_t V, int64_t width, const Real* table);
  int cut(int x, int64_t first, int64_t count);

  int64_t width(int slot) const { return slots_[slot].width; }
  int64_t state_begin(int slot) const override { return slots_[slot].begin; }

  explicit Steps(Stored stored = Stored::whole) : stored_(stored) {}
  Stored stored() const { return stored_; }  // how products shall pack their weights

  // What a step does with the rows of a workspace; what a row of it costs, in multiply-adds or about; that it draws.
  template <class F>
  void add(const F& step) {
    steps_.push_back({[step](Work& w, const Member&) { step(w); }, false});
  }
  // The same for step(w, member), which divides its work among the members of a team.
  template <class F>
  void add_shared(const F& step) {
    steps_.push_back({step, true});
  }
  void costs(int64_t work) { work_ += work; }
  void draw() { draws_ = true; }

  // f(w, row) for each row.
  template <class F>
  void each_row(const F& f) {
    add([=](Work& w) {
      for (int64_t row = 0; row < w.rows; ++row) f(w, row);
    });
  }

  // y = f(a, b), a vector at a time: of all rows at once, where all three lie alike.
  template <class F>
  void each_vector(int y, int a, int b, const F& f) {
    const int64_t n = width(y), stride = slots_[y].stride;
    const auto stretch = [=](Work& w, int64_t row, int64_t count) {
      const Real *from = w.at(a, row), *other = w.at(b, row);
      Real* to = w.at(y, row);
      for (int64_t i = 0; i < count; i += L) store(to + i, f(load<Vec<Real>>(from + i), load<Vec<Real>>(other + i)));
    };
    const auto alike = [&](int x) { return slots_[x].home == Home::workspace && slots_[x].stride == stride; };
    if (alike(a) && alike(b)) add([=](Work& w) { stretch(w, 0, w.rows * stride); });
    else each_row([=](Work& w, int64_t row) { stretch(w, row, n); });
  }

  // Whether what is made of x, N numbers of it, is made once for each symbol.
  bool remembers(int x, int64_t N) const { return x == looked_up_ && V_ * N <= largest_table; }

  // y = f(x) by rows, in `parts` that threads divide: f(rows, left, right, x, ldx, y) makes the parts [left, right), the rows of y
  // as far apart as the slot has them. Of symbols it is made once each.
  template <class F>
  void made_of(int x, int y, int64_t parts, const F& f) {
    const int64_t N = slots_[y].stride;
    if (!remembers(x, N)) {
      add_shared([=](Work& w, const Member& member) {
        const auto [left, right] = share(parts, member);
        if (left < right) f(w.rows, left, right, w.at(x, 0), w.places[x].stride, w.at(y, 0));
      });
      return;
    }
    const int64_t D = width(x);
    auto table = std::make_shared<Remembered<Real>>(V_, N, [f, D, parts, from = table_](int64_t symbol, Real* line) {
      f(1, int64_t(0), parts, from + symbol * D, D, line);
    });
    remembered_.push_back(table);
    each_row([=](Work& w, int64_t row) { std::memcpy(w.at(y, row), table->line(w.symbols[row]), N * sizeof(Real)); });
  }

  void states_known() override { until_known_ = steps_.size(); }
  void finish(int in, int out) override { in_ = in, out_ = out; }
  std::unique_ptr<Stream<Real>> stream(int64_t B) override;

  // For the stream.
  int in() const { return in_; }
  int out() const { return out_; }
  int64_t symbols() const { return in_ == looked_up_ ? V_ : 0; }
  int64_t state_row() const { return state_row_; }
  int64_t work() const { return work_; }
  bool draws() const { return draws_; }
  bool shares() const {
    return std::any_of(steps_.begin(), steps_.end(), [](const Operation& step) { return step.shared; });
  }

  Work workspace(int64_t rows) const;
  void learn(const int64_t* symbols, int64_t count) const {
    for (const auto& table : remembered_) table->learn(symbols, count);
  }

  // The states of the rows of a workspace begin here.
  void bind(Work& w, Real* states) const {
    for (size_t i = 0; i < slots_.size(); ++i)
      if (slots_[i].home == Home::state) w.places[i].begin = states + slots_[i].begin;
  }

  // One step of w.rows rows, all of it or as far as it takes to know their states. What is not shared is the first member's, and
  // all have met when a step that is shared begins and ends.
  void run(Work& w, const Member& member, bool whole = true) const {
    const size_t end = whole ? steps_.size() : std::min(until_known_, steps_.size());
    for (size_t i = 0; i < end; ++i) {
      if (steps_[i].shared || member.thread == 0) steps_[i].run(w, member);
      if (steps_[i].shared || (i + 1 < end && steps_[i + 1].shared)) member.barrier.wait(member.threads);
    }
    if (member.thread == 0) w.backwards = !w.backwards;
  }
  void run(Work& w, Real* states) const {
    static Barrier nobody;  // comes there
    static const Pieces none(0);
    bind(w, states);
    run(w, {0, 1, nobody, none});
  }

 private:
  int add_slot(const Slot& slot) {
    slots_.push_back(slot);
    return int(slots_.size()) - 1;
  }

  struct Operation {
    std::function<void(Work&, const Member&)> run;
    bool shared;
  };

  Stored stored_;
  int in_ = -1, out_ = -1, looked_up_ = -2;
  size_t until_known_ = std::numeric_limits<size_t>::max();
  bool draws_ = false;
  int64_t V_ = 0, state_row_ = 0, workspace_row_ = 0, work_ = 0;
  const Real* table_ = nullptr;  // (V_, width): what symbols name
  std::vector<Slot> slots_;
  std::vector<Buffer<Real>> constants_;  // and tables
  std::vector<std::shared_ptr<Remembered<Real>>> remembered_;
  std::vector<Operation> steps_;
};

// That a family has this operation, for both types.
#define ELMAN_APPEND(Operation)                                  \
  template int append(Program<float>&, const Operation<float>&); \
  template int append(Program<double>&, const Operation<double>&);

}  // namespace elman::ELMAN_NS
