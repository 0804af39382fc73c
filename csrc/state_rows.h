// The rows of a stream: their states, which a program steps.
//
// A stream keeps the state of a row in one stretch of memory, | leaf | leaf | ... |, each leaf in whole cache lines. Rows that
// lie side by side are stepped where they are; others are gathered, a stretch at a time, stepped and scattered.
#pragma once

#include <stdexcept>
#include <vector>

#include "choice.h"
#include "parallel.h"
#include "philox.h"
#include "workspace.h"

namespace elman::ELMAN_NS {

constexpr int64_t most_rows = 128;  // stepped at a time: enough for a product, few enough for the cache
constexpr int64_t some_rows = 48;   // of paths: the same, and their states stay there

// Multiply-adds of a row that are worth dividing its units among threads: where these have to be called together, and where they
// are there for many steps. Chosen between the sizes that were measured; the weights of so many do not stay in a core's own cache.
constexpr int64_t worth_calling = 1 << 20, worth_meeting = 1 << 18;

template <class Steps, class Real>
class StateRows final : public Stream<Real> {
 public:
  StateRows(const Steps& program, int64_t B)
      : p_(program), B_(B), row_(p_.state_row()), states_(zeros<Real>(B * row_)), named_(B, 0) {}

  int64_t rows() const override { return B_; }
  int64_t state_row() const override { return row_; }
  int64_t input_width() const override { return p_.width(p_.in()); }
  int64_t output_width() const override { return p_.width(p_.out()); }

  void step(const Real* x, const int64_t* rows, int64_t count, Real* y, int threads) override {
    check(rows, count);
    run(x, nullptr, rows, count, y, threads);
  }

  void step_symbols(const int64_t* symbols, const int64_t* rows, int64_t count, Real* y, int threads) override {
    check(rows, count);
    check_symbols(symbols, count);
    p_.learn(symbols, count);
    run(nullptr, symbols, rows, count, y, threads);
  }

  void carry(const Real* x, int64_t count, const Real* before, Real* after, Real* y, int threads) override {
    in_pieces(count, threads, carriers_, most_rows, [&](Workspace<Real>& w, int64_t at, int64_t some) {
      if (!w.gathered) w.gathered = zeros<Real>(most_rows * row_);
      copy(before + at * row_, w.gathered.get(), some);
      w.symbols = nullptr, w.named = nullptr, w.first = at;
      advance(w, x + at * input_width(), w.gathered.get(), some, y + at * output_width());
      copy(w.gathered.get(), after + at * row_, some);
    });
  }

  // Each path stays with its thread until it ends, so that its state stays in the cache.
  void paths(const Real* x, int64_t H, const int64_t* draws, int64_t each, double* y, int threads) const override {
    const int64_t rows = B_ * each, tiles = (rows + some_rows - 1) / some_rows;
    if (!p_.draws()) throw std::invalid_argument("native stream: the program draws nothing.");
    parallel(threads_for(rows * H * p_.work(), WorthAThread::multiply_adds, threads), tiles, [&](int64_t first, int64_t end) {
      Workspace<Real> w = p_.workspace(std::min(rows, some_rows));
      w.gathered = zeros<Real>(std::min(rows, some_rows) * row_);
      std::vector<int64_t> drawn(2 * some_rows);
      for (int64_t tile = first; tile < end; ++tile) {
        const int64_t at = rows * tile / tiles;
        w.first = at, w.rows = rows * (tile + 1) / tiles - at;
        std::copy_n(draws + 2 * at, 2 * w.rows, drawn.data());
        w.draws = drawn.data();
        follow(w, x, H, each, drawn.data(), y + at * H * output_width());
      }
    });
  }

  int64_t work() const override { return p_.work(); }
  bool divides() const override { return p_.shares() && p_.work() >= worth_calling; }

  void read(const int64_t* symbols, int64_t T, int64_t row, int threads) override {
    check(&row, 1);
    check_symbols(symbols, T);
    p_.learn(symbols, T);
    Workspace<Real>& w = workspace(0);
    w.rows = 1, w.named = nullptr, w.first = row;
    p_.bind(w, states_.get() + row * row_);
    team(together(threads), [&](Member& member) {
      for (int64_t t = 0; t < T; ++t) {
        if (member.thread == 0) w.symbols = symbols + t;
        if (!member.meet()) return;
        p_.run(w, member, false);
      }
    });
  }

  int64_t write(const Choice& choice, const Pending& pending, const int64_t* rows, int64_t count, int64_t n, int64_t end,
                int64_t* written, int threads) override {
    if (output_width() != p_.symbols()) throw std::invalid_argument("native stream: a step does not end in logits.");
    check(rows, count);
    check_banned(choice, p_.symbols());
    for (int64_t i = 0; i < count; ++i) check_symbols(pending.symbols + rows[i], 1);
    if (count == 0) return n;
    const int64_t divided = threads_for(count * n * p_.work(), WorthAThread::multiply_adds, threads);
    const int64_t pieces = std::max(std::min(divided, count), (count + most_rows - 1) / most_rows);
    while (int64_t(workspaces_.size()) < pieces) workspace(workspaces_.size());
    if (pieces == 1) {
      return written_by(workspaces_[0], {choice, pending, rows, count, n, end, written}, 0, count, together(threads));
    }
    parallel(int(std::min<int64_t>(pieces, threads)), pieces, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const int64_t at = count * i / pieces, some = count * (i + 1) / pieces - at;
        written_by(workspaces_[i], {choice, pending, rows, count, n, end, written}, at, some, 1);
      }
    });
    return n;
  }

  void take(const int64_t* rows, int64_t count, Real* to) const override {
    for (int64_t i = 0; i < count; ++i) copy(states_.get() + rows[i] * row_, to + i * row_, 1);
  }

  void reorder(const int64_t* parents) override {
    if (!spare_) spare_ = zeros<Real>(B_ * row_);
    take(parents, B_, spare_.get());
    std::swap(states_, spare_);
  }

  void put(const int64_t* rows, int64_t count, const Real* from) override {
    for (int64_t i = 0; i < count; ++i) copy(from + i * row_, states_.get() + rows[i] * row_, 1);
  }

 private:
  // States of some rows. A core that remembers nothing has none, and no memory for them.
  void copy(const Real* from, Real* to, int64_t rows) const {
    if (row_ > 0) std::memcpy(to, from, rows * row_ * sizeof(Real));
  }

  // How many threads make a step together where it is many in a call. Where they share nothing they would not meet within it.
  int together(int threads) const { return p_.shares() && p_.work() >= worth_meeting ? threads : 1; }

  // A row may be named once: it cannot take two steps at a time.
  void check(const int64_t* rows, int64_t count) {
    if (!rows) return;
    ++round_;
    for (int64_t i = 0; i < count; ++i) {
      if (rows[i] < 0 || rows[i] >= B_) throw std::out_of_range("native stream: a row is outside the stream.");
      if (named_[rows[i]] == round_) throw std::out_of_range("native stream: a row is named twice.");
      named_[rows[i]] = round_;
    }
  }

  void check_symbols(const int64_t* symbols, int64_t count) const {
    if (p_.symbols() == 0) throw std::invalid_argument("native stream: the program does not read symbols.");
    for (int64_t i = 0; i < count; ++i)
      if (symbols[i] < 0 || symbols[i] >= p_.symbols())
        throw std::out_of_range("native stream: a symbol is outside the table.");
  }

  Workspace<Real>& workspace(size_t i) {
    while (workspaces_.size() <= i) workspaces_.push_back(p_.workspace(std::min(B_, most_rows)));
    return workspaces_[i];
  }

  struct Writing {
    const Choice& choice;
    const Pending& pending;
    const int64_t* rows;
    int64_t count, n, end;
    int64_t* written;
  };

  // What `some` of the rows write, from the at-th on: how many symbols each.
  int64_t written_by(Workspace<Real>& w, const Writing& job, int64_t at, int64_t some, int threads) {
    const int64_t V = p_.symbols(), *rows = job.rows + at;
    const bool in_place = side_by_side(rows, some);
    if (!in_place && !w.gathered) w.gathered = zeros<Real>(std::min(B_, most_rows) * row_);
    if (!in_place) take(rows, some, w.gathered.get());
    Chooser choose(job.choice, V);
    std::vector<int64_t> read(some);
    w.symbols = read.data(), w.rows = some, w.named = rows, w.first = at;
    p_.bind(w, in_place ? states_.get() + rows[0] * row_ : w.gathered.get());
    int64_t done = 0;
    bool ended = false;
    team(threads, [&](Member& member) {
      while (true) {
        if (member.thread == 0) {
          ended = ended || done == job.n;
          for (int64_t i = 0; i < some; ++i) read[i] = job.pending.symbols[rows[i]];
          p_.learn(read.data(), some);
        }
        if (!member.meet() || ended) return;
        p_.run(w, member);
        if (member.thread != 0) continue;
        for (int64_t i = 0; i < some; ++i) {
          const int64_t row = rows[i], symbol = drawn(choose, w.at(p_.out(), i), job.pending, row, V);
          job.written[done * job.count + at + i] = symbol;
          ended = job.count == 1 && symbol == job.end;
        }
        ++done;
      }
    });
    if (!in_place) put(rows, some, w.gathered.get());
    return done;
  }

  static int64_t drawn(Chooser& choose, const Real* logits, const Pending& pending, int64_t row, int64_t V) {
    int64_t* draw = pending.draws + 2 * row;
    const int64_t symbol = choose(logits, pending.seen + row * V, uniform(philox(draw[0], 0, draw[1]).first));
    ++draw[1];
    pending.seen[row * V + symbol] = true;
    return pending.symbols[row] = symbol;
  }

  void run(const Real* x, const int64_t* symbols, const int64_t* rows, int64_t count, Real* y, int threads) {
    const int together = count < threads && divides() ? threads : 1;
    in_pieces(count, together > 1 ? 1 : threads, workspaces_, std::min(B_, most_rows),
              [&](Workspace<Real>& w, int64_t at, int64_t some) {
                w.symbols = symbols ? symbols + at : nullptr;
                part(w, x ? x + at * input_width() : nullptr, rows ? rows + at : nullptr, at, some, y + at * output_width(),
                     together);
              });
  }

  // Calls step(workspace, first, how many) for `count` rows, a tile at a time, on some threads.
  template <class Step>
  void in_pieces(int64_t count, int threads, std::vector<Workspace<Real>>& workspaces, int64_t rows, Step step) {
    if (p_.draws()) throw std::invalid_argument("native stream: the program draws, which a step does not.");
    if (count == 0) return;
    const int64_t pieces = std::clamp<int64_t>(threads_for(count * p_.work(), WorthAThread::multiply_adds, threads), 1, count);
    while (int64_t(workspaces.size()) < pieces) workspaces.push_back(p_.workspace(rows));
    parallel(int(pieces), pieces, [&](int64_t first, int64_t end) {
      for (int64_t i = first; i < end; ++i)
        for (int64_t at = count * i / pieces; at < count * (i + 1) / pieces; at += most_rows)
          step(workspaces[i], at, std::min(most_rows, count * (i + 1) / pieces - at));
    });
  }

  // `count` rows from the at-th on of those that were named.
  void part(Workspace<Real>& w, const Real* x, const int64_t* rows, int64_t at, int64_t count, Real* y, int threads) {
    w.named = rows, w.first = at;
    if (side_by_side(rows, count)) return advance(w, x, states_.get() + (rows ? rows[0] : at) * row_, count, y, threads);
    if (!w.gathered) w.gathered = zeros<Real>(std::min(B_, most_rows) * row_);
    take(rows, count, w.gathered.get());
    advance(w, x, w.gathered.get(), count, y, threads);
    put(rows, count, w.gathered.get());
  }

  // One step of `count` rows, whose states lie side by side; threads may divide the units.
  void advance(Workspace<Real>& w, const Real* x, Real* states, int64_t count, Real* y, int threads = 1) {
    const int64_t in = input_width(), out = output_width();
    w.rows = count;
    for (int64_t i = 0; i < count && x; ++i) std::memcpy(w.at(p_.in(), i), x + i * in, in * sizeof(Real));
    if (threads == 1) {
      p_.run(w, states);
    } else {
      p_.bind(w, states);
      team(threads, [&](const Member& member) { p_.run(w, member); });
    }
    for (int64_t i = 0; i < count; ++i) std::memcpy(y + i * out, w.at(p_.out(), i), out * sizeof(Real));
  }

  // All steps of the paths from w.first on.
  void follow(Workspace<Real>& w, const Real* x, int64_t H, int64_t each, int64_t* draws, double* y) const {
    const int64_t in = input_width(), out = output_width();
    for (int64_t i = 0; i < w.rows; ++i) copy(states_.get() + (w.first + i) / each * row_, w.gathered.get() + i * row_, 1);
    for (int64_t t = 0; t < H; ++t) {
      for (int64_t i = 0; i < w.rows; ++i) {
        Real* to = w.at(p_.in(), i);
        std::memcpy(to, x + ((w.first + i) / each * H + t) * in, in * sizeof(Real));
        for (int64_t c = 0; c < out && t > 0; ++c) to[c] = w.at(p_.out(), i)[c];
      }
      p_.run(w, w.gathered.get());
      for (int64_t i = 0; i < w.rows; ++i) {
        for (int64_t c = 0; c < out; ++c) y[(i * H + t) * out + c] = w.at(p_.out(), i)[c];
        ++draws[2 * i + 1];
      }
    }
  }

  static bool side_by_side(const int64_t* rows, int64_t count) {
    for (int64_t i = 1; i < count && rows; ++i)
      if (rows[i] != rows[0] + i) return false;
    return true;
  }

  const Steps& p_;
  int64_t B_, row_;
  Buffer<Real> states_, spare_;  // the other of the two when rows are reordered
  std::vector<int64_t> named_;   // the last step that named a row
  int64_t round_ = 0;
  std::vector<Workspace<Real>> workspaces_, carriers_;
};

}  // namespace elman::ELMAN_NS
