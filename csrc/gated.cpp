// The gated loop, forward: time inside, rows or units over the threads. gated_step.h has the step.
//
// Sums run over ascending k, first over the input and then over the state (product.h), so neither the order of rows, nor
// threads, nor the batch, nor where a sequence is cut, changes a bit. A reset is a branch: the step before writes zeros where
// the next one will look for its state. Units are padded to whole vectors: weights of zero keep the rest of them zero.
#include "gated_replay.h"
#include "gated_step.h"
#include "kernels.h"
#include "narrow.h"
#include "parallel.h"
#include "rows.h"
#include "steps.h"

namespace elman::ELMAN_NS {
namespace {

template <class Cell, class Real>
class Loop : public Replay<Real> {
  static constexpr int L = lanes<Real>;

 public:
  // Without y, h and c nothing but `saved` is written: the loop is there to be replayed.
  Loop(const GatedInputs<Real>& inputs, const GatedOutputs<Real>& outputs, Phi phi, int threads)
      : in_(inputs),
        out_(outputs),
        step_(in_.weights, phi),
        units_(step_.layout.units),
        outputs_(step_.layout.outputs),
        order_(in_.B, in_.T, in_.lengths, in_.reset, in_.every, in_.backwards),
        ldx_((in_.weights.D + 15) / 16 * 16 + 16),
        division_(order_, step_.blocks, step_.R * step_.H * step_.products, whole_rows(in_.weights.options), threads) {
    const int64_t size = in_.B * units_;
    h_[0] = allocate<Real>(in_.B * outputs_);
    h_[1] = allocate<Real>(in_.B * outputs_);
    if (Cell::has_c) c_ = allocate<Real>(size);
    if (Cell::second > 0) q_ = allocate<Real>(size), z_ = allocate<Real>(size);
    if (step_.projects_h()) cells_ = zeros<Real>(size);
  }

  void operator()(Member& team) {
    bool stays = true;
    division_.each(team, [&](const Part& part) {
      Member alone = team;
      alone.threads = 1;
      stays = run(0, in_.T, part, division_.by_rows ? alone : team);
    });
    for (int64_t rank = team.thread; stays && rank < in_.B; rank += team.threads) {
      const int64_t row = order_.row[rank] * in_.T;
      for (int64_t t = order_.length[rank]; t < in_.T; ++t) std::fill_n(out_.y + (row + t) * out_.ldy, step_.R, Real(0));
    }
  }

  // What must be there before the threads begin.
  void prepare() {
    prefer_huge_pages(out_.y, in_.B * in_.T * out_.ldy * sizeof(Real));
    const int64_t numbers = order_.begin.back() * step_.layout.saved_row;
    if (out_.saved) prefer_huge_pages(out_.saved, numbers * sizeof(Real));
    if (out_.halves) prefer_huge_pages(out_.halves, numbers * sizeof(uint16_t));
    begin(h_[0].get(), in_.h0, out_.h, step_.R, outputs_);
    if (Cell::has_c) begin(c_.get(), in_.c0, out_.c, step_.H, units_);
  }

  bool replay(int64_t begin, int64_t end, const Real* checkpoints, Part part, Member& member) override {
    each_state(begin, part, checkpoints,
               [](Real* state, const Real* checkpoint, int64_t n) { std::memcpy(state, checkpoint, n); });
    return meet(part, member) && run(begin, end, part, member);
  }

  int threads() const { return division_.threads; }

 private:
  // The state before the first step, and the last state of rows that have none.
  void begin(Real* state, const Real* from, Real* last, int64_t width, int64_t padded) {
    for (int64_t rank = 0; rank < in_.B; ++rank) {
      const int64_t row = order_.row[rank];
      const bool empty = order_.length[rank] == 0;
      std::memset(state + rank * padded, 0, padded * sizeof(Real));
      if (empty) std::memcpy(last + row * width, from + row * width, width * sizeof(Real));
      else if (!order_.begins(rank, 0)) std::memcpy(state + rank * padded, from + row * width, width * sizeof(Real));
    }
  }

  // f(state, checkpoint, bytes) for each row of the part that runs at step t, one of those that have a checkpoint.
  template <class Pointer, class F>
  void each_state(int64_t t, const Part& part, Pointer checkpoints, const F& f) {
    const int64_t first = part.left * L, bytes = (part.right - part.left) * L * sizeof(Real);
    for (int64_t rank = part.first; rank < std::min(part.end, order_.running[t]); ++rank) {
      const Pointer checkpoint = checkpoint_of(checkpoints, step_.layout, in_, t, rank);
      Real* h = h_[t & 1].get() + rank * outputs_;
      if (cells_) f(h, checkpoint, outputs_ * sizeof(Real));  // then units are never divided
      else f(h + first, checkpoint + first, bytes);
      if (c_) f(c_.get() + rank * units_ + first, checkpoint + outputs_ + first, bytes);
    }
  }

  // Steps [begin, end) of a part, whose units the member's team divides; false if the member is to leave it.
  bool run(int64_t begin, int64_t end, Part part, Member& member) {
    const int64_t ldu = step_.ldu, steps = std::min(Chunk::steps(part, ldu * sizeof(Real)), end - begin);
    const int64_t ranks = part.end - part.first, most = steps * ranks;
    const auto x = allocate<Real>(in_.weights.U ? most * ldx_ : 0), u = allocate<Real>(most * ldu);
    const auto sums = allocate<Real>(step_.separate_sums() ? ranks * ldu : 0);
    const auto wide = allocate<Real>(out_.halves ? (step_.normalises_input() ? most : ranks) * step_.layout.saved_row : 0);
    for (int64_t t = begin; t < end;) {
      const Chunk chunk(order_, part, t, std::min(t + steps, end));
      if (chunk.rows == 0) break;
      project(chunk, part, x.get(), u.get(), wide.get());
      // Who is alone from now on has not projected the others' units: a new chunk begins.
      for (const int threads = member.threads; t < chunk.end && threads == member.threads; ++t)
        if (const int64_t count = chunk.count(order_, t)) {
          if (out_.checkpoints && t % in_.every == 0)
            each_state(t, part, out_.checkpoints,
                       [](const Real* state, Real* checkpoint, int64_t n) { std::memcpy(checkpoint, state, n); });
          Real* here = u.get() + chunk.at(t, part.first) * ldu;
          step_(
              count, {part.left, part.right}, outputs_, here, step_.separate_sums() ? sums.get() : here,
              [&](int64_t i) { return row_step(t, part.first + i, saved(chunk, t, part.first + i, wide.get())); },
              [&] { member.barrier.wait(member.threads); });
          if (out_.halves) narrow_step(chunk, t, count, part, wide.get());
          if (!meet(part, member)) return false;
        }
    }
    return true;
  }

  // Wait for the team; who is alone afterwards has all units.
  bool meet(Part& part, Member& member) const {
    const int threads = member.threads;
    if (!member.meet()) return false;
    if (member.threads != threads) part.left = 0, part.right = step_.blocks;
    return true;
  }

  // u = U x + b for all rows of a chunk, U x normalised or not
  void project(const Chunk& chunk, const Part& part, Real* x, Real* u, Real* wide) const {
    const bool given = !in_.weights.U;  // x is u already
    chunk.each(order_, [&](int64_t rank, int64_t t) {
      const Real* from = in_.x.data + order_.row[rank] * in_.x.row + order_.time(rank, t) * in_.x.time;
      if (given) step_.arrange(from, u + chunk.at(t, rank) * step_.ldu, {part.left, part.right});
      else std::memcpy(x + chunk.at(t, rank) * ldx_, from, in_.weights.D * sizeof(Real));
    });
    if (given) return;
    step_.project(chunk.rows, {part.left, part.right}, x, ldx_, u);
    if (!step_.normalises_input()) return;
    chunk.each(order_, [&](int64_t rank, int64_t t) {
      step_.normalise_input(u + chunk.at(t, rank) * step_.ldu, saved(chunk, t, rank, wide));
    });
  }

  ELMAN_INLINE RowStep<Real> row_step(int64_t t, int64_t rank, Real* save) const {
    const int64_t row = order_.row[rank], at = rank * units_, R = step_.R;
    const bool ends = t + 1 == order_.length[rank];
    RowStep<Real> s{h_[t & 1].get() + rank * outputs_,
                    h_[(t + 1) & 1].get() + rank * outputs_,
                    c_.get() + at,
                    q_.get() + at,
                    z_.get() + at,
                    cells_.get() + at};
    if (out_.y) s.y = out_.y + order_.place(rank, t) * out_.ldy;
    if (out_.y && ends) s.last_h = out_.h + row * R, s.last_c = out_.c + row * step_.H;
    s.forget = !ends && order_.begins(rank, t + 1);
    s.save = save;
    return s;
  }

  // Where a step leaves what is saved. What is to be narrowed waits in `wide` until the step is done: one row for each rank, or,
  // where inputs are normalised before their step comes, for each row of the chunk.
  ELMAN_INLINE Real* saved(const Chunk& chunk, int64_t t, int64_t rank, Real* wide) const {
    if (out_.halves) return wide + (step_.normalises_input() ? chunk.at(t, rank) : chunk.among(rank)) * step_.layout.saved_row;
    return out_.saved ? out_.saved + (order_.begin[t] + rank) * step_.layout.saved_row : nullptr;
  }

  // The part's share of what step t of its `count` rows has left in `wide`.
  void narrow_step(const Chunk& chunk, int64_t t, int64_t count, const Part& part, Real* wide) const {
    for (int64_t rank = part.first; rank < part.first + count; ++rank) {
      const Real* from = saved(chunk, t, rank, wide);
      uint16_t* to = out_.halves + (order_.begin[t] + rank) * step_.layout.saved_row;
      step_.layout.each_stretch(part.left * L, part.right * L, step_.H,
                                [&](int64_t begin, int64_t end) { narrow(from + begin, end - begin, to + begin); });
    }
  }

  GatedInputs<Real> in_;
  GatedOutputs<Real> out_;
  GatedStep<Cell, Real> step_;
  int64_t units_, outputs_;
  Order order_;
  int64_t ldx_;
  Division division_;
  Buffer<Real> h_[2], c_, q_, z_, cells_;
};

}  // namespace

template <class Real>
void gated(const GatedInputs<Real>& inputs, const GatedOutputs<Real>& outputs, int threads) {
  with_cell(inputs.weights.kind, [&](auto cell, Phi phi) {
    Loop<decltype(cell), Real> loop(inputs, outputs, phi, threads);
    loop.prepare();
    team(loop.threads(), [&](Member& member) { loop(member); });
  });
}

template <class Real>
std::unique_ptr<Replay<Real>> gated_replay(const GatedInputs<Real>& inputs, Real* saved) {
  std::unique_ptr<Replay<Real>> replay;
  with_cell(inputs.weights.kind, [&](auto cell, Phi phi) {
    GatedOutputs<Real> outputs{};
    outputs.saved = saved;
    replay = std::make_unique<Loop<decltype(cell), Real>>(inputs, outputs, phi, 1);
  });
  return replay;
}

namespace {

// f(units) for all blocks of units that a member has, a few at a time, so that the weights of a block come one after the other;
// from the last one on if `backwards`. Two blocks of the widest vectors are six to eight sums, which are chains enough, and leave
// more of the weights in the cache until the next step: a GRU of 64 units takes 0.52 us, with four blocks 0.62.
template <class F>
void each_few(Units mine, bool backwards, const F& f) {
  constexpr int64_t few = vector_bytes == 64 ? 2 : 4;
  const int64_t pieces = (mine.right - mine.left + few - 1) / few;
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t left = mine.left + (backwards ? pieces - 1 - i : i) * few;
    f(Units{left, std::min(left + few, mine.right)});
  }
}

}  // namespace

template <class Real>
int append(Program<Real>& program, const GatedOperation<Real>& o) {
  using Work = Workspace<Real>;
  auto& steps = Steps<Real>::of(program);
  with_cell(o.weights.kind, [&, x = o.x, fed = o.fed, h = o.h, c = o.c](auto cell, Phi phi) {
    using Cell = decltype(cell);
    using Step = GatedStep<Cell, Real>;
    auto step = std::make_shared<Step>(o.weights, phi, steps.stored());
    const int64_t ldu = step->ldu, units = step->layout.units, blocks = step->blocks;
    const bool by_units = !whole_rows(o.weights.options), whole_input = step->normalises_input();
    const int u = steps.slot(ldu, ldu), sums = step->separate_sums() ? steps.slot(ldu, ldu) : u;
    const int q = steps.slot(units, units), z = steps.slot(units, units), cells = steps.slot(units, units);
    // With its units the state can be projected and stepped, if nobody else wants what is projected.
    const bool at_once = by_units && Cell::second == 0 && !whole_input && fed < 0 && !steps.remembers(x, ldu);
    if (!at_once)
      steps.made_of(x, u, whole_input ? 1 : blocks,
                    [=](int64_t rows, int64_t left, int64_t right, const Real* from, int64_t ldx, Real* to) {
                      step->project(rows, whole_input ? Units{0, blocks} : Units{left, right}, from, ldx, to);
                      for (int64_t row = 0; row < rows && whole_input; ++row) step->normalise_input(to + row * ldu, nullptr);
                    });
    if (fed >= 0) {  // the sum that x has begun goes on, as in attended.cpp
      GatedWeights<Real> more = o.weights;
      more.D = steps.width(fed), more.U = o.U_fed, more.b = nullptr;
      auto second = std::make_shared<Step>(more, phi, steps.stored());
      steps.add_shared([=](Work& w, const Member& member) {
        const auto [left, right] = share(blocks, member);
        second->project(w.rows, {left, right}, w.at(fed, 0), w.places[fed].stride, w.at(u, 0), true);
      });
      steps.costs(ldu * more.D);
    }
    const auto row_step = [=](Work& w, int64_t i, int next) {
      return RowStep<Real>{w.at(h, i), w.at(next, i), c < 0 ? nullptr : w.at(c, i), w.at(q, i), w.at(z, i), w.at(cells, i)};
    };
    const auto take = [=](Work& w, Units some, int next, const Member* team) {
      (*step)(
          w.rows, some, w.places[h].stride, w.at(u, 0), w.at(sums, 0), [&](int64_t i) { return row_step(w, i, next); },
          [&] {
            if (team) team->barrier.wait(team->threads);
          });
    };
    if (by_units) {
      const int next = steps.slot(units, units);  // the state after, until nobody reads the one before any more
      steps.add_shared([=](Work& w, const Member& member) {
        const auto [left, right] = share(blocks, member);
        const auto some = [&](Units few) {
          if (at_once) step->project(w.rows, few, w.at(x, 0), w.places[x].stride, w.at(u, 0));
          take(w, few, next, &member);
        };
        if (Cell::second > 0) some({left, right});
        else each_few({left, right}, w.backwards, some);
        member.barrier.wait(member.threads);
        constexpr int L = lanes<Real>;
        for (int64_t i = 0; i < w.rows; ++i) copy_numbers(w.at(next, i) + left * L, w.at(h, i) + left * L, (right - left) * L);
      });
    } else {
      steps.add([=](Work& w) { take(w, {0, blocks}, h, nullptr); });
    }
    steps.costs(ldu * (o.weights.D + step->R));
  });
  return o.h;
}

template Gated<float> gated<float>;
template Gated<double> gated<double>;
ELMAN_APPEND(GatedOperation)
template std::unique_ptr<Replay<float>> gated_replay(const GatedInputs<float>&, float*);
template std::unique_ptr<Replay<double>> gated_replay(const GatedInputs<double>&, double*);

}  // namespace elman::ELMAN_NS
