// The gated loop, backward: a chunk of steps at a time, from the last to the first. The loop over a chunk leaves the gradients
// of its sums in an array, which the products that follow turn into those of the inputs and weights while it is in the cache.
//
// Where only states were kept, the steps between two of them are computed again when the loop comes to them.
//
// A reset is a branch: what would have flowed back across it is not read. Nothing is multiplied by zero to make it vanish.
#include "gated_again.h"
#include "gated_gradients.h"
#include "gated_norm.h"

namespace elman::ELMAN_NS {
namespace {

template <class Cell, class T>
class RunBack : public Gradients<Cell, T> {
  using Base = Gradients<Cell, T>;
  using typename Base::Work;
  using Base::L, Base::P, Base::sums, Base::turn, Base::sum_slot, Base::input_slot, Base::own, Base::columns, Base::steps;
  using Base::p_, Base::order_, Base::padded_, Base::wide_, Base::wide_h_, Base::ldg_, Base::ldh_, Base::division_, Base::nothing_;
  static constexpr int together = normed_together<Cell>;

 public:
  RunBack(const GatedLoopBack<T>& loop, bool relu, Again<T>* again, int threads)
      : Base(loop, threads), relu_(relu), again_(again), fetches_(sums * p_.H * p_.R * int64_t(sizeof(T)) <= 1 << 18) {
    if (p_.with.gain) gain_ = padded_rows(p_.with.gain, Cell::gates, p_.H, wide_);
    if (Cell::first > 0) first_ = pack_back(p_.w, p_.H, p_.R, wide_, 0, Cell::first, gain_ ? 0 : turn);
    if (Cell::second > 0) second_ = pack_back(p_.w, p_.H, p_.R, wide_, Cell::first, Cell::second, 0);
    extra_ = padded_copy(p_.extra, p_.extra_size, p_.H, wide_);
    const auto& w = p_.with;
    if (w.peephole) peephole_ = padded_rows(w.peephole, Cell::gates - 1, p_.H, padded_);
    if (w.gain_U) gain_U_ = padded_rows(w.gain_U, Cell::gates, p_.H, wide_);
    if (w.gain_c) gain_c_ = padded_rows(w.gain_c, 1, p_.H, wide_), bias_c_ = padded_rows(w.bias_c, 1, p_.H, wide_);
    if (w.P) P_ = pack_back(w.P, p_.R, p_.H, wide_h_, 0, 1, 0), narrow_ = allocate<T>(p_.B * wide_);
    const int64_t size = p_.B * wide_;
    dh_ = allocate<T>(p_.B * wide_h_);
    if (Cell::has_c) dc_ = allocate<T>(size);
    if (Cell::second > 0) D_ = allocate<T>(size), dq_ = allocate<T>(size);
  }

  void operator()(int thread, int threads, Barrier& barrier) {
    division_.each(thread, threads, [&](Part part) {
      run(part, thread, threads, barrier);
      for (int64_t rank = part.first; rank < part.end; ++rank) {
        begin(rank, part, p_.gh, dh_.get(), p_.gh0, p_.R, wide_h_);
        if (Cell::has_c) begin(rank, part, p_.gc, dc_.get(), p_.gc0, p_.H, wide_);
      }
    });
    for (int64_t rank = thread; rank < p_.B && p_.gx; rank += threads) {
      T* past = p_.gx + (order_.row[rank] * p_.T + order_.length[rank]) * p_.D;
      std::fill_n(past, (p_.T - order_.length[rank]) * p_.D, T(0));
    }
  }

 private:
  // Gradient of the state before the first step.
  void begin(int64_t rank, const Part& part, const T* last, const T* carried, T* to, int64_t width, int64_t wide) const {
    const int64_t row = order_.row[rank];
    const auto [left, right] = columns(part, width);
    if (right <= left) return;
    T* out = to + row * width + left;
    if (order_.length[rank] == 0) std::memcpy(out, last + row * width + left, (right - left) * sizeof(T));
    else if (p_.reset[row * p_.T]) std::memset(out, 0, (right - left) * sizeof(T));
    else std::memcpy(out, carried + rank * wide + left, (right - left) * sizeof(T));
  }

  void run(const Part& part, int thread, int threads, Barrier& barrier) {
    Work& work = this->work_[part.number];
    const int64_t most = steps(part.end - part.first);
    const auto six = allocate<T>(work.rows * (std::max(p_.H, p_.R) + 5));
    for (int64_t end = p_.T, begin; end > 0; end = begin) {
      const int64_t kept = (end - 1) / p_.every * p_.every;  // the last step before which the state was
      begin = std::max(end - most, kept);
      const Chunk chunk(order_, part, begin, end);
      if (again_ && (end == p_.T || end % p_.every == 0)) recompute(kept, end, part, barrier, threads);
      if (chunk.rows == 0) continue;
      this->gather(chunk, part, work, thread, threads);
      for (int64_t t = end - 1; t >= chunk.begin; --t)
        if (const int64_t count = chunk.count(order_, t)) step(t, count, chunk, part, work, barrier, threads);
      if (!division_.by_rows) barrier.wait(threads);
      if (gain_U_) normalise_inputs(chunk, work);
      this->products(chunk, part, work, six.get(), thread, threads);
      if (!division_.by_rows) barrier.wait(threads);
    }
  }

  // What the steps [begin, end) save
  void recompute(int64_t begin, int64_t end, const Part& part, Barrier& barrier, int threads) {
    const int64_t blocks = (p_.H + L - 1) / L;
    const Part same{part.first, part.end, std::min(part.left * 2, blocks), std::min(part.right * 2, blocks), part.number};
    again_->again(begin, end, same, barrier, division_.by_rows ? 1 : threads);
  }

  void step(int64_t t, int64_t count, const Chunk& chunk, const Part& part, Work& work, Barrier& barrier, int threads) {
    const int64_t at = chunk.at(t, part.first);
    if (P_) widen(t, count, part, work.gy.get() + at * ldh_);
    for (int64_t i = 0; i < count; ++i) gates(t, part.first + i, at + i, part, work);
    if constexpr (sums > 0) {
      const T* g = work.g.get() + at * ldg_;
      if (!division_.by_rows) barrier.wait(threads);
      if constexpr (Cell::second > 0) {
        if (gain_) normalise_sums<Cell::first, Cell::gates>(t, count, at, part, work);
        product<Cell::second>(count, part, second_.get(), g + Cell::first * wide_, dq_.get(), false);
        for (int64_t i = 0; i < count; ++i) gates_after(t, part.first + i, at + i, part, work);
        if (!division_.by_rows) barrier.wait(threads);
      }
      if (gain_) {
        normalise_sums<0, together>(t, count, at, part, work);
        normalise_sums<together, Cell::first>(t, count, at, part, work);
      }
      product<Cell::first>(count, part, first_.get(), g, dh_.get(), !P_);
    }
  }

  // Through h = P m: gy becomes the whole gradient of h, narrow_ that of m.
  void widen(int64_t t, int64_t count, const Part& part, T* gy) {
    for (int64_t i = 0; i < count; ++i) {
      const T* from = carried(t, part.first + i, p_.gh, dh_.get(), p_.R, wide_h_);
      for (int64_t n = 0; n < p_.R; ++n) gy[i * ldh_ + n] += from[n];
    }
    const Start<T> zero{nothing_.get(), 0};
    run_panels<2, T>(P_.get(), 0, wide_ / P, count, gy, ldh_, wide_h_, &zero, narrow_.get() + part.first * wide_, wide_);
  }

  // Gates [a, b) of W h': the gradients of the normalised sums become those of the sums.
  template <int a, int b>
  void normalise_sums(int64_t t, int64_t count, int64_t at, const Part& part, Work& work) const {
    for (int64_t i = 0; i < count; ++i) {
      T* g = work.g.get() + (at + i) * ldg_;
      const auto from = [&](int gate) { return g + (own(gate) ? sum_slot(gate) : input_slot(gate)) * wide_; };
      const auto to = [&](int gate) { return g + sum_slot(gate) * wide_; };
      if (a < b && own(a) && p_.gextra)
        for (int64_t n = 0; n < p_.H; n += L) add(work.gextra.get() + n, load<Vec<T>>(from(a) + n), p_.H - n);
      normalise<a, b>(t, part.first + i, 0, gain_.get(), work.ggain.get(), from, to);
    }
  }

  // U x likewise, for all rows of a chunk; b, which is added behind the norm, has its gradient from before.
  void normalise_inputs(const Chunk& chunk, Work& work) const {
    if (p_.gb)
      for (int gate = 0; gate < Cell::gates; ++gate)
        this->add_rows(chunk.rows, {0, 0, 0, wide_ / P, 0}, work.g.get() + input_slot(gate) * wide_, nullptr, work.gb.get() + gate * wide_);
    chunk.each(order_, [&](int64_t rank, int64_t t) {
      const auto g = [&](int gate) { return work.g.get() + chunk.at(t, rank) * ldg_ + input_slot(gate) * wide_; };
      normalise<0, together>(t, rank, Cell::gates, gain_U_.get(), work.ggain_U.get(), g, g);
      normalise<together, Cell::gates>(t, rank, Cell::gates, gain_U_.get(), work.ggain_U.get(), g, g);
    });
  }

  // Gates [a, b) of a row whose normalised values were saved in the slots from `slot` on.
  template <int a, int b, class From, class To>
  ELMAN_INLINE void normalise(int64_t t, int64_t rank, int slot, const T* gain, T* ggain, const From& from, const To& to) const {
    if constexpr (a < b) {
      const T *save = p_.saved + (order_.begin[t] + rank) * p_.saved_row, *scale = saved_scales(save, p_.saved_row) + slot + a;
      NormedGate<T> of[b - a];
      for (int i = a; i < b; ++i)
        of[i - a] = {from(i), save + (Cell::saves + slot + i) * padded_, gain + i * wide_, ggain + i * wide_, to(i)};
      normalise_back(p_.H, *scale, of);
    }
  }
  static ELMAN_INLINE void add(T* to, Vec<T> v, int64_t units) { store_some(to, Vec<T>(load_some(to, units) + v), units); }

  // to (+)= g W for the columns of the part
  template <int N>
  void product(int64_t count, const Part& part, const T* packed, const T* g, T* to, bool add) const {
    const Start<T> zero{nothing_.get(), 0};
    const int64_t left = P_ ? 0 : part.left, right = P_ ? wide_h_ / P : part.right;
    run_panels<2>(packed, left, right, count, g, ldg_, N * wide_, add ? nullptr : &zero, to + part.first * wide_h_, wide_h_);
  }

  // What arrives from the step after: the gradient of the last state at a row's end, nothing across a reset.
  const T* carried(int64_t t, int64_t rank, const T* last, const T* from, int64_t width, int64_t wide) const {
    const int64_t row = order_.row[rank];
    if (t + 1 == order_.length[rank]) return last + row * width;
    return p_.reset[row * p_.T + t + 1] ? nothing_.get() : from + rank * wide;
  }

  // LSTM's cell before the step
  const T* cell_before(int64_t t, int64_t rank) const {
    const int64_t row = order_.row[rank];
    if (p_.reset[row * p_.T + t]) return nothing_.get();
    if (again_ && t % p_.every == 0) return kept_state<T>(p_, t, rank, true) + padded_width<T>(p_.R);
    return t == 0 ? p_.c0 + row * p_.H : p_.saved + (order_.begin[t - 1] + rank) * p_.saved_row + (Cell::saves - 1) * padded_;
  }

  void gates(int64_t t, int64_t rank, int64_t at, const Part& part, Work& work) {
    constexpr int ready = Cell::second > 0 ? 1 : 0;  // gate 0 must wait for the second product's gradient
    const int64_t mine = rank * wide_, H = p_.H, rows = work.rows, blocks = std::min(part.right * 2, (H + L - 1) / L);
    const T* dh_in = P_ ? nullptr : carried(t, rank, p_.gh, dh_.get(), H, wide_);
    const T* dc_in = Cell::has_c ? carried(t, rank, p_.gc, dc_.get(), H, wide_) : nullptr;
    const T *c = Cell::has_c ? cell_before(t, rank) : nullptr, *y = p_.y + (order_.row[rank] * p_.T + t) * H;
    const T *gy = P_ ? narrow_.get() + mine : work.gy.get() + at * ldh_, *h = work.h.get() + at * P, *extra = extra_.get();
    T *g = work.g.get() + at * ldg_, *q = work.q.get() + at * P, *dh = dh_.get() + mine, *dc = dc_.get() + mine;
    Backward<T> b = saved(t, rank);
    const T* save = b.save;
    if (t > 0 && fetches_) fetch(saved(t - 1, rank).save);
    const T* inner = gain_c_ ? work.inner.get() : nullptr;
    if constexpr (Cell::has_c)
      if (gain_c_) {
        const auto D = [&](int64_t n) { return load<Vec<T>>(gy + n) + (dh_in ? load_some(dh_in + n, H - n) : Vec<T>{}); };
        T* to = work.inner.get();
        through_norm_back(H, save + Cell::gates * padded_, save + Cell::at_o * padded_, saved_scales(save, p_.saved_row) + 1,
                          gain_c_.get(), bias_c_.get(), D, work.ggain_c.get(), work.gbias_c.get(), to, to + wide_, to + 2 * wide_);
      }
    for (int64_t j = part.left * 2; j < blocks; ++j) {
      const int64_t n = j * L, units = H - n, panel = j / 2 * rows * P + j % 2 * L;
      b.save = save + n;
      b.extra = load<Vec<T>>(extra + n);
      b.peephole = peephole_ ? peephole_.get() + n : nullptr;
      if (Cell::saves == 0) b.y = load_some(y + n, units);
      b.D = load<Vec<T>>(gy + n);
      if (!P_) {
        b.h = load<Vec<T>>(h + panel);
        b.D = b.D + load_some(dh_in + n, units);
      }
      if (Cell::has_c) b.c = load_some(c + n, units), b.dc = load_some(dc_in + n, units);
      if (inner) b.tanh_c = load<Vec<T>>(inner + n), b.through = load<Vec<T>>(inner + wide_ + n);
      Cell::template backward<T>(b);
      // Zero past the last unit, whatever an infinity in the state has made of the lanes there.
      for (int i = ready; i < Cell::gates; ++i) store_some(g + (own(i) ? sum_slot(i) : input_slot(i)) * wide_ + n, b.g[i], units);
      if (Cell::shared_last) store_some(g + input_slot(Cell::gates - 1) * wide_ + n, b.apart, units);
      if constexpr (Cell::has_c) {
        if (peephole_) peep(b, work, n, units);
        if (P_) store_some(q + panel, Vec<T>(b.kept(Cell::at_o) * b.tanh_c), units);
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
  void peep(const Backward<T>& b, Work& work, int64_t n, int64_t units) const {
    constexpr int last = Cell::gates - 2;
    for (int i = 0; i < last; ++i) add(work.gpeephole.get() + i * wide_ + n, b.g[i] * b.c, units);
    add(work.gpeephole.get() + last * wide_ + n, b.g[Cell::gates - 1] * b.kept(Cell::gates), units);
  }

  // The gate in front of the second product, once that product's gradient is there.
  void gates_after(int64_t t, int64_t rank, int64_t at, const Part& part, Work& work) {
    if constexpr (Cell::second > 0) {
      Backward<T> b = saved(t, rank);
      const T* save = b.save;
      for (int64_t j = part.left * 2; j < std::min(part.right * 2, (p_.H + L - 1) / L); ++j) {
        const int64_t n = j * L, mine = rank * wide_ + n;
        b.save = save + n;
        b.h = load<Vec<T>>(work.h.get() + at * P + j / 2 * work.rows * P + j % 2 * L);
        b.D = load<Vec<T>>(D_.get() + mine);
        b.direct = load<Vec<T>>(dh_.get() + mine);
        Cell::template backward<T>(b, load<Vec<T>>(dq_.get() + mine));
        store_some(work.g.get() + at * ldg_ + input_slot(0) * wide_ + n, b.g[0], p_.H - n);
        store(dh_.get() + mine, b.direct);
      }
    }
  }

  // What the step before has saved of this row, into the second-level cache: memory is read backwards, which processors do not
  // expect. Where the weights alone fill that cache at every step, it would not stay there.
  void fetch(const T* save) const {
    for (int64_t n = 0; n < p_.saved_row; n += 64 / sizeof(T)) __builtin_prefetch(save + n, 0, 2);
  }

  Backward<T> saved(int64_t t, int64_t rank) const {
    Backward<T> b;
    b.save = p_.saved + (order_.begin[t] + rank) * p_.saved_row;
    b.stride = padded_;
    b.relu = relu_;
    b.normed = bool(gain_c_);
    return b;
  }

  bool relu_;
  Again<T>* again_;
  bool fetches_;
  Buffer<T> first_, second_, extra_, dh_, dc_, D_, dq_, narrow_, P_, peephole_, gain_, gain_U_, gain_c_, bias_c_;
};

}  // namespace

template <class T>
void gated_back(int kind, const GatedLoopBack<T>& loop, int threads) {
  GatedLoopBack<T> p = loop;
  Buffer<T> saved;
  std::unique_ptr<Again<T>> again;
  if (p.kept) {
    saved = allocate<T>(p.every * p.B * p.saved_row);
    p.saved = saved.get();
    again = gated_again<T>(kind, {p.B, p.T, p.D, p.H, p.R, p.x, p.U, p.b, p.w, p.extra, p.extra_size, p.with, p.h0, p.c0, p.lengths,
                                  p.reset, nullptr, nullptr, nullptr, saved.get(), p.saved_row, p.every, const_cast<T*>(p.kept)});
  }
  each_cell(kind, [&](auto cell, bool relu) {
    RunBack<decltype(cell), T> run(p, relu, again.get(), threads);
    team(run.threads(), [&](int thread, int count, Barrier& barrier) { run(thread, count, barrier); });
    run.finish(threads);
  });
}

template GatedBack<float> gated_back<float>;
template GatedBack<double> gated_back<double>;

}  // namespace elman::ELMAN_NS
