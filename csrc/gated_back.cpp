// The gated loop, backward: a chunk of steps at a time, from the last to the first. The loop over a chunk leaves the gradients
// of its sums in an array, which the products that follow turn into those of the inputs and weights while it is in the cache.
//
// Where there are only checkpoints, the steps between two of them are computed again when the loop comes to them.
//
// A reset is a branch: what would have flowed back across it is not read. Nothing is multiplied by zero to make it vanish.
#include "gated_gradients.h"
#include "gated_norm.h"
#include "gated_replay.h"
#include "narrow.h"

namespace elman::ELMAN_NS {
namespace {

template <class Cell, class Real>
class LoopBack {
  using Shape = BackShape<Cell, Real>;
  using Work = BackWork<Real>;
  static constexpr int L = Shape::L, P = Shape::P;
  static constexpr int together = normed_together<Cell>;

 public:
  // `replay` fills arriving.saved where that was not done in the forward pass; else it is null.
  LoopBack(const GatedInputs<Real>& inputs, const GatedArriving<Real>& arriving, const GatedGradients<Real>& gradients, Phi phi,
           Replay<Real>* replay, int threads)
      : s_(inputs, threads),
        arriving_(arriving),
        to_(gradients),
        phi_(phi),
        replay_(replay),
        gradients_(s_, arriving, gradients),
        fetches_(s_.products * s_.H * s_.R * int64_t(sizeof(Real)) <= 1 << 18) {
    const GatedWeights<Real>& w = s_.in.weights;
    const GatedOptions<const Real>& o = w.options;
    if (o.gain) gain_ = padded_rows(o.gain, Cell::gates, s_.H, s_.wide);
    if (Cell::first > 0) first_ = pack_back(w.w, s_.H, s_.R, s_.H, 0, Cell::first, gain_ ? 0 : s_.rotation);
    if (Cell::second > 0) second_ = pack_back(w.w, s_.H, s_.R, s_.H, Cell::first, Cell::second, 0);
    extra_ = padded_copy(w.extra, w.extra_size, s_.H, s_.wide);
    if (o.peephole) peephole_ = padded_rows(o.peephole, Cell::gates - 1, s_.H, s_.layout.units);
    if (o.gain_U) gain_U_ = padded_rows(o.gain_U, Cell::gates, s_.H, s_.wide);
    if (o.gain_c) gain_c_ = padded_rows(o.gain_c, 1, s_.H, s_.wide), bias_c_ = padded_rows(o.bias_c, 1, s_.H, s_.wide);
    const int64_t size = s_.in.B * s_.wide;
    if (o.P) P_ = pack_back(o.P, s_.R, s_.H, s_.R, 0, 1, 0), gcells_ = allocate<Real>(size);
    if (arriving.halves) wide_ = allocate<Real>(s_.in.B * wide_row());
    dh_ = allocate<Real>(s_.in.B * s_.wide_h);
    if (Cell::has_c) dc_ = allocate<Real>(size);
    if (Cell::second > 0) D_ = allocate<Real>(size), dq_ = allocate<Real>(size);
  }

  int threads() const { return s_.division.threads; }

  void operator()(Member& team) {
    bool stays = true;
    s_.division.each(team, [&](Part part) {
      stays = run(part, team);
      for (int64_t rank = part.first; stays && rank < part.end; ++rank) {
        begin(rank, part, arriving_.gh, dh_.get(), to_.gh0, s_.R, s_.wide_h);
        if (Cell::has_c) begin(rank, part, arriving_.gc, dc_.get(), to_.gc0, s_.H, s_.wide);
      }
    });
    for (int64_t rank = team.thread; stays && rank < s_.in.B && to_.gx; rank += team.threads) {
      Real* past = to_.gx + (s_.order.row[rank] * s_.in.T + s_.order.length[rank]) * s_.D;
      std::fill_n(past, (s_.in.T - s_.order.length[rank]) * s_.D, Real(0));
    }
  }

  void finish(int threads) const { gradients_.add_up_parts(threads); }

 private:
  // Gradient of the state before the first step.
  void begin(int64_t rank, const Part& part, const Real* last, const Real* carried, Real* to, int64_t width,
             int64_t wide) const {
    const int64_t row = s_.order.row[rank];
    const auto [left, right] = s_.share(part, width);
    if (right <= left) return;
    Real* out = to + row * width + left;
    if (s_.order.length[rank] == 0) std::memcpy(out, last + row * width + left, (right - left) * sizeof(Real));
    else if (s_.order.begins(rank, 0)) std::memset(out, 0, (right - left) * sizeof(Real));
    else std::memcpy(out, carried + rank * wide + left, (right - left) * sizeof(Real));
  }

  // All steps of a part, whose units the team divides; false if this member is to leave it.
  bool run(Part& part, Member& team) {
    Work& work = gradients_.work(part);
    const int64_t most = s_.steps(part.end - part.first);
    const auto packed_g = allocate<Real>(work.rows * std::max(s_.H, s_.R));
    for (int64_t end = s_.in.T, begin; end > 0; end = begin) {
      const int64_t checkpoint = (end - 1) / s_.in.every * s_.in.every;  // the last step that has one
      begin = std::max(end - most, checkpoint);
      const Chunk chunk(s_.order, part, begin, end);
      if (replay_ && (end == s_.in.T || end % s_.in.every == 0) && !recompute(checkpoint, end, part, team)) return false;
      if (chunk.rows == 0) continue;
      gradients_.gather(chunk, part, work, team.thread, team.threads);
      for (int64_t t = end - 1; t >= chunk.begin; --t)
        if (const int64_t count = chunk.count(s_.order, t))
          if (!step(t, count, chunk, part, work, team)) return false;
      if (!meet(part, team)) return false;
      if (gain_U_) normalise_inputs(chunk, part, work);
      gradients_.products(chunk, part, work, packed_g.get(), team.thread, team.threads);
      if (!meet(part, team)) return false;
    }
    return true;
  }

  // Where units are divided, wait for the team; who is alone afterwards has all of them.
  bool meet(Part& part, Member& team) const {
    if (s_.division.by_rows) return true;
    if (!team.meet()) return false;
    part = s_.division.units_of(team);
    return true;
  }

  // What the steps [begin, end) save
  bool recompute(int64_t begin, int64_t end, Part& part, Member& team) {
    const int64_t blocks = (s_.H + L - 1) / L;
    const Part same{part.first, part.end, std::min(part.left * 2, blocks), std::min(part.right * 2, blocks), part.number};
    Member alone = team;
    alone.threads = 1;
    if (!replay_->replay(begin, end, arriving_.checkpoints, same, s_.division.by_rows ? alone : team)) return false;
    if (!s_.division.by_rows) part = s_.division.units_of(team);
    return true;
  }

  bool step(int64_t t, int64_t count, const Chunk& chunk, Part& part, Work& work, Member& team) {
    const int64_t at = chunk.at(t, part.first);
    if (P_) project_h_back(t, count, part, work.gy.get() + at * s_.ldh);
    for (int64_t i = 0; i < count; ++i) gates(t, part.first + i, at + i, part, work);
    if constexpr (Shape::products > 0) {
      const Real* g = work.g.get() + at * s_.ldg;
      if (!meet(part, team)) return false;
      if constexpr (Cell::second > 0) {
        if (gain_) normalise_sums<Cell::first, Cell::gates>(t, count, at, part, work);
        product<Cell::second>(count, part, second_.get(), g + Cell::first * s_.H, dq_.get(), false);
        for (int64_t i = 0; i < count; ++i) gates_after(t, part.first + i, at + i, part, work);
        if (!meet(part, team)) return false;
      }
      if (gain_) {
        normalise_sums<0, together>(t, count, at, part, work);
        normalise_sums<together, Cell::first>(t, count, at, part, work);
      }
      product<Cell::first>(count, part, first_.get(), g, dh_.get(), !P_);
    }
    return true;
  }

  // Through h = P m: gy becomes the whole gradient of h, gcells_ that of m.
  void project_h_back(int64_t t, int64_t count, const Part& part, Real* gy) {
    for (int64_t i = 0; i < count; ++i) {
      const Real* from = carried(t, part.first + i, arriving_.gh, dh_.get(), s_.R, s_.wide_h);
      for (int64_t n = 0; n < s_.R; ++n) gy[i * s_.ldh + n] += from[n];
    }
    const Start<Real> zero{s_.zeros.get(), 0};
    run_pairs(P_.get(), 0, s_.wide / P, s_.H, count, gy, s_.ldh, s_.R, &zero, gcells_.get() + part.first * s_.wide, s_.wide);
  }

  // Gates [a, b) of W h': the gradients of the normalised sums become those of the sums.
  template <int a, int b>
  void normalise_sums(int64_t t, int64_t count, int64_t at, const Part& part, Work& work) const {
    for (int64_t i = 0; i < count; ++i) {
      Real* g = work.g.get() + (at + i) * s_.ldg;
      const auto from = [&](int gate) {
        return g + (s_.starts_elsewhere(gate) ? s_.sum_slot(gate) : s_.input_slot(gate)) * s_.H;
      };
      const auto to = [&](int gate) { return g + s_.sum_slot(gate) * s_.H; };
      if (a < b && s_.starts_elsewhere(a) && to_.gextra)
        for (int64_t n = 0; n < s_.H; n += L) add(work.gextra.get() + n, load<Vec<Real>>(from(a) + n), s_.H - n);
      normalise<a, b>(saved(t, part.first + i, part), 0, gain_.get(), work.ggain.get(), from, to);
    }
  }

  // U x likewise, for all rows of a chunk; b, which is added behind the norm, has its gradient from before.
  void normalise_inputs(const Chunk& chunk, const Part& part, Work& work) const {
    if (to_.gb)
      for (int gate = 0; gate < Cell::gates; ++gate)
        gradients_.add_rows(chunk.rows, {0, 0, 0, s_.wide / P, 0}, work.g.get() + s_.input_slot(gate) * s_.H, nullptr,
                            work.gb.get() + gate * s_.wide);
    chunk.each(s_.order, [&](int64_t rank, int64_t t) {
      const Real* save = saved(t, rank, part);
      const auto g = [&](int gate) { return work.g.get() + chunk.at(t, rank) * s_.ldg + s_.input_slot(gate) * s_.H; };
      normalise<0, together>(save, Cell::gates, gain_U_.get(), work.ggain_U.get(), g, g);
      normalise<together, Cell::gates>(save, Cell::gates, gain_U_.get(), work.ggain_U.get(), g, g);
    });
  }

  // Gates [a, b) of a row whose normalised values were saved in the slots from `slot` on.
  template <int a, int b, class From, class To>
  ELMAN_INLINE void normalise(const Real* save, int slot, const Real* gain, Real* ggain, const From& from, const To& to) const {
    if constexpr (a < b) {
      const Real* scale = saved_scales(save, s_.layout.saved_row) + slot + a;
      NormedGate<Real> of[b - a];
      for (int i = a; i < b; ++i)
        of[i - a] = {from(i), save + (Cell::saves + slot + i) * s_.layout.units, gain + i * s_.wide, ggain + i * s_.wide,
                     to(i)};
      normalise_back(s_.H, *scale, of);
    }
  }
  static ELMAN_INLINE void add(Real* to, Vec<Real> v, int64_t units) {
    store_some(to, Vec<Real>(load_some(to, units) + v), units);
  }

  // to (+)= g W for the columns of the part
  template <int N>
  void product(int64_t count, const Part& part, const Real* packed, const Real* g, Real* to, bool add) const {
    const Start<Real> zero{s_.zeros.get(), 0};
    const int64_t left = P_ ? 0 : part.left, right = P_ ? s_.wide_h / P : part.right;
    run_pairs(packed, left, right, s_.R, count, g, s_.ldg, N * s_.H, add ? nullptr : &zero, to + part.first * s_.wide_h,
              s_.wide_h);
  }

  // What arrives from the step after: the gradient of the last state at a row's end, nothing across a reset.
  const Real* carried(int64_t t, int64_t rank, const Real* last, const Real* from, int64_t width, int64_t wide) const {
    const int64_t row = s_.order.row[rank];
    if (t + 1 == s_.order.length[rank]) return last + row * width;
    return s_.order.begins(rank, t + 1) ? s_.zeros.get() : from + rank * wide;
  }

  // LSTM's cell before the step
  const Real* cell_before(int64_t t, int64_t rank, const Part& part) const {
    const int64_t row = s_.order.row[rank];
    if (s_.order.begins(rank, t)) return s_.zeros.get();
    if (replay_ && t % s_.in.every == 0)
      return checkpoint_of(arriving_.checkpoints, s_.layout, s_.in, t, rank) + s_.layout.outputs;
    if (t == 0) return s_.in.c0 + row * s_.H;
    const int64_t at = row_of_saved(t - 1, rank) + (Cell::saves - 1) * s_.layout.units;
    if (!arriving_.halves) return arriving_.saved + at;
    Real* wide = wide_.get() + rank * wide_row() + s_.layout.saved_row;
    const auto [left, right] = units_of(part);
    widen(arriving_.halves + at + left, right - left, wide + left);
    return wide;
  }

  void gates(int64_t t, int64_t rank, int64_t at, const Part& part, Work& work) {
    constexpr int ready = Cell::second > 0 ? 1 : 0;  // gate 0 must wait for the second product's gradient
    const int64_t mine = rank * s_.wide, H = s_.H, rows = work.rows, blocks = std::min(part.right * 2, (H + L - 1) / L);
    const Real* dh_in = P_ ? nullptr : carried(t, rank, arriving_.gh, dh_.get(), H, s_.wide);
    const Real* dc_in = Cell::has_c ? carried(t, rank, arriving_.gc, dc_.get(), H, s_.wide) : nullptr;
    const Real *c = Cell::has_c ? cell_before(t, rank, part) : nullptr,
               *y = arriving_.y + s_.order.place(rank, t) * arriving_.ldy;
    const Real *gy = P_ ? gcells_.get() + mine : work.gy.get() + at * s_.ldh, *h = work.h.get() + at * P, *extra = extra_.get();
    Real *g = work.g.get() + at * s_.ldg, *q = work.q.get() + at * P, *dh = dh_.get() + mine, *dc = dc_.get() + mine;
    Backward<Real> b = cell();
    const Real* save = saved(t, rank, part);
    const Ahead ahead = t > 1 && fetches_ ? saved_ahead(t - 2, rank) : Ahead{};
    const Real* inner = gain_c_ ? work.inner.get() : nullptr;
    if constexpr (Cell::has_c)
      if (gain_c_) {
        const auto D = [&](int64_t n) { return load<Vec<Real>>(gy + n) + (dh_in ? load_some(dh_in + n, H - n) : Vec<Real>{}); };
        Real* to = work.inner.get();
        norm_c_back(H, save + Cell::gates * s_.layout.units, save + Cell::at_o * s_.layout.units,
                    saved_scales(save, s_.layout.saved_row) + 1, gain_c_.get(), bias_c_.get(), D, work.ggain_c.get(),
                    work.gbias_c.get(), to, to + s_.wide, to + 2 * s_.wide);
      }
    for (int64_t j = part.left * 2; j < blocks; ++j) {
      const int64_t n = j * L, units = H - n, panel = j / 2 * rows * P + j % 2 * L;
      fetch(ahead, n);
      b.save = save + n;
      b.extra = load<Vec<Real>>(extra + n);
      b.peephole = peephole_ ? peephole_.get() + n : nullptr;
      if (Cell::saves == 0) b.y = load_some(y + n, units);
      b.D = load<Vec<Real>>(gy + n);
      if (!P_) {
        b.h = load<Vec<Real>>(h + panel);
        b.D = b.D + load_some(dh_in + n, units);
      }
      if (Cell::has_c) b.c = load_some(c + n, units), b.dc = load_some(dc_in + n, units);
      if (inner) b.tanh_c = load<Vec<Real>>(inner + n), b.dc_by_h = load<Vec<Real>>(inner + s_.wide + n);
      Cell::template backward<Real>(b);
      for (int i = ready; i < Cell::gates; ++i)
        store_some(g + (s_.starts_elsewhere(i) ? s_.sum_slot(i) : s_.input_slot(i)) * H + n, b.g[i], units);
      if (Cell::shared_last) store_some(g + s_.input_slot(Cell::gates - 1) * H + n, b.gu_last, units);
      if constexpr (Cell::has_c) {
        if (peephole_) peep(b, work, n, units);
        if (P_) store_some(q + panel, Vec<Real>(b.saved(Cell::at_o) * b.tanh_c), units);
      }
      if (Cell::second > 0) {
        store(D_.get() + mine + n, b.D);
        store_some(q + panel, b.q, units);
      }
      if (!P_) store(dh + n, b.direct);
      if (Cell::has_c) store(dc + n, b.dc);
    }
  }

  // Gradients of the peepholes: i and f saw c', o saw c.
  void peep(const Backward<Real>& b, Work& work, int64_t n, int64_t units) const {
    constexpr int last = Cell::gates - 2;
    for (int i = 0; i < last; ++i) add(work.gpeephole.get() + i * s_.wide + n, b.g[i] * b.c, units);
    add(work.gpeephole.get() + last * s_.wide + n, b.g[Cell::gates - 1] * b.saved(Cell::gates), units);
  }

  // The gate in front of the second product, once that product's gradient is there.
  void gates_after(int64_t t, int64_t rank, int64_t at, const Part& part, Work& work) {
    if constexpr (Cell::second > 0) {
      Backward<Real> b = cell();
      const Real* save = saved(t, rank, part);
      for (int64_t j = part.left * 2; j < std::min(part.right * 2, (s_.H + L - 1) / L); ++j) {
        const int64_t n = j * L, mine = rank * s_.wide + n;
        b.save = save + n;
        b.h = load<Vec<Real>>(work.h.get() + at * P + j / 2 * work.rows * P + j % 2 * L);
        b.D = load<Vec<Real>>(D_.get() + mine);
        b.direct = load<Vec<Real>>(dh_.get() + mine);
        Cell::template backward<Real>(b, load<Vec<Real>>(dq_.get() + mine));
        store_some(work.g.get() + at * s_.ldg + s_.input_slot(0) * s_.H + n, b.g[0], s_.H - n);
        store(dh_.get() + mine, b.direct);
      }
    }
  }

  // What a step has saved of this row, on its way into the second-level cache: memory is read backwards, which processors do not
  // expect. Two steps ahead, a line of each value at a time: all lines of a row at once would fill the queue of a core's misses,
  // and the loads of this step wait behind them. Where the weights alone fill that cache at every step, it would not stay there.
  struct Ahead {
    const char* row = nullptr;
    int64_t size = 0;  // of a number
  };
  Ahead saved_ahead(int64_t t, int64_t rank) const {
    const int64_t at = row_of_saved(t, rank);
    if (arriving_.halves) return {reinterpret_cast<const char*>(arriving_.halves + at), sizeof(uint16_t)};
    return {reinterpret_cast<const char*>(arriving_.saved + at), sizeof(Real)};
  }
  // From number n on, if a line begins there.
  ELMAN_INLINE void fetch(const Ahead& ahead, int64_t n) const {
    if (!ahead.row || n * ahead.size % cache_line != 0) return;
    for (int64_t at = n; at < s_.layout.saved_row; at += s_.layout.units) __builtin_prefetch(ahead.row + at * ahead.size, 0, 2);
  }

  int64_t row_of_saved(int64_t t, int64_t rank) const { return (s_.order.begin[t] + rank) * s_.layout.saved_row; }

  // What a step has saved of a row: the part's units of it.
  const Real* saved(int64_t t, int64_t rank, const Part& part) const {
    const int64_t at = row_of_saved(t, rank);
    if (!arriving_.halves) return arriving_.saved + at;
    Real* wide = wide_.get() + rank * wide_row();
    const auto [left, right] = units_of(part);
    s_.layout.each_stretch(left, right, s_.H, [&](int64_t begin, int64_t end) {
      widen(arriving_.halves + at + begin, end - begin, wide + begin);
    });
    return wide;
  }
  // Of each rank: what a step has saved, and c before it.
  int64_t wide_row() const { return s_.layout.saved_row + s_.layout.units; }
  // In whole vectors.
  std::pair<int64_t, int64_t> units_of(const Part& part) const {
    return {part.left * P, std::min(part.right * 2, (s_.H + L - 1) / L) * L};
  }

  Backward<Real> cell() const {
    Backward<Real> b;
    b.stride = s_.layout.units;
    b.phi = phi_;
    b.normed = bool(gain_c_);
    return b;
  }

  Shape s_;
  GatedArriving<Real> arriving_;
  GatedGradients<Real> to_;
  Phi phi_;
  Replay<Real>* replay_;
  Gradients<Cell, Real> gradients_;
  bool fetches_;
  Buffer<Real> wide_, first_, second_, extra_, dh_, dc_, D_, dq_, gcells_, P_, peephole_, gain_, gain_U_, gain_c_, bias_c_;
};

}  // namespace

template <class Real>
void gated_back(const GatedInputs<Real>& inputs, const GatedArriving<Real>& arriving, const GatedGradients<Real>& gradients,
                int threads) {
  with_cell(inputs.weights.kind, [&](auto cell, Phi phi) {
    using Cell = decltype(cell);
    GatedArriving<Real> given = arriving;
    Buffer<Real> saved;
    std::unique_ptr<Replay<Real>> replay;
    if (given.checkpoints) {
      saved = allocate<Real>(inputs.every * inputs.B * gated_layout<Cell>(inputs.weights).saved_row);
      given.saved = saved.get();
      replay = gated_replay<Real>(inputs, saved.get());
    }
    LoopBack<Cell, Real> loop(inputs, given, gradients, phi, replay.get(), threads);
    team(loop.threads(), [&](Member& member) { loop(member); });
    loop.finish(threads);
  });
}

template GatedBack<float> gated_back<float>;
template GatedBack<double> gated_back<double>;

}  // namespace elman::ELMAN_NS
