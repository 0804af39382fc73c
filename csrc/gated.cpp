// The gated loop, forward: time inside, rows or units over the threads.
//
// Sums run over ascending k, first over the input and then over the state (product.h), so neither the order of rows, nor
// threads, nor the batch, nor where a sequence is cut, changes a bit. A reset is a branch: the step before writes zeros where
// the next one will look for its state. Units are padded to whole vectors: weights of zero keep the rest of them zero.
#include "gated.h"

#include "blocks.h"
#include "gated_again.h"
#include "gated_norm.h"
#include "kernels.h"
#include "parallel.h"
#include "rows.h"

namespace elman::ELMAN_NS {
namespace {

template <class Cell, class T>
class Run : public Again<T> {
  static constexpr int L = lanes<T>;
  static constexpr int before = Cell::gates - Cell::second;  // gates that are known before the second product
  static constexpr int sums = Cell::first + Cell::second;

 public:
  Run(const GatedLoop<T>& loop, bool relu, int threads)
      : p_(loop),
        relu_(relu),
        order_(p_.B, p_.T, p_.lengths, p_.every),
        blocks_((p_.H + L - 1) / L),
        padded_(padded_width<T>(p_.H)),
        padded_h_(padded_width<T>(p_.R)),
        second_at_(blocks_ * before * L),
        ldu_(blocks_ * Cell::gates * L + 16),
        ldx_((p_.D + 15) / 16 * 16 + 16),
        division_(order_, blocks_, p_.R * p_.H * sums, p_.with.gain || p_.with.P, threads) {
    if constexpr (Cell::first > 0) first_ = pack_gates<Cell::first>(p_.w, p_.H, p_.R, 0);
    if constexpr (Cell::second > 0) second_ = pack_gates<Cell::second>(p_.w, p_.H, p_.R, Cell::first);
    if (p_.U) {
      input_ = pack_gates<before>(p_.U, p_.H, p_.D, 0);
      if constexpr (Cell::second > 0) input_second_ = pack_gates<Cell::second>(p_.U, p_.H, p_.D, before);
      bias_ = zeros<T>(ldu_);
      if (p_.b) arrange(p_.b, bias_.get(), 0, blocks_);
    }
    extra_ = padded_copy(p_.extra, p_.extra_size, p_.H, padded_);
    options();
    const int64_t size = p_.B * padded_;
    h_[0] = allocate<T>(p_.B * padded_h_);
    h_[1] = allocate<T>(p_.B * padded_h_);
    if (Cell::has_c) c_ = allocate<T>(size);
    if (Cell::second > 0) q_ = allocate<T>(size), z_ = allocate<T>(size);
  }

  void operator()(int thread, int threads, Barrier& barrier) {
    division_.each(thread, threads, [&](Part part) { run(0, p_.T, part, barrier, division_.by_rows ? 1 : threads); });
    for (int64_t rank = thread; rank < p_.B; rank += threads) {
      T* past = p_.y + (order_.row[rank] * p_.T + order_.length[rank]) * p_.R;
      std::fill_n(past, (p_.T - order_.length[rank]) * p_.R, T(0));
    }
  }

  // What must be there before the threads begin.
  void prepare() {
    prefer_huge_pages(p_.y, p_.B * p_.T * p_.R * sizeof(T));
    if (p_.saved) prefer_huge_pages(p_.saved, order_.begin.back() * p_.saved_row * sizeof(T));
    begin(h_[0].get(), p_.h0, p_.h, p_.R, padded_h_);
    if (Cell::has_c) begin(c_.get(), p_.c0, p_.c, p_.H, padded_);
  }

  void again(int64_t begin, int64_t end, const Part& part, Barrier& barrier, int together) override {
    exchange(begin, part, [](T* state, T* kept, int64_t bytes) { std::memcpy(state, kept, bytes); });
    barrier.wait(together);
    run(begin, end, part, barrier, together);
  }

  int threads() const { return division_.threads; }

 private:
  // The state before the first step, and the last state of rows that have none.
  void begin(T* state, const T* from, T* last, int64_t width, int64_t padded) {
    for (int64_t rank = 0; rank < p_.B; ++rank) {
      const int64_t row = order_.row[rank];
      const bool empty = order_.length[rank] == 0;
      std::memset(state + rank * padded, 0, padded * sizeof(T));
      if (empty) std::memcpy(last + row * width, from + row * width, width * sizeof(T));
      else if (!p_.reset[row * p_.T]) std::memcpy(state + rank * padded, from + row * width, width * sizeof(T));
    }
  }

  // The weights of the options, padded as the units are.
  void options() {
    const auto& w = p_.with;
    nothing_ = zeros<T>(std::max(ldu_, padded_h_));
    if (w.peephole) peephole_ = padded_rows(w.peephole, Cell::gates - 1, p_.H, padded_);
    if (w.gain) gain_ = padded_rows(w.gain, Cell::gates, p_.H, padded_);
    if (w.gain_U) gain_U_ = padded_rows(w.gain_U, Cell::gates, p_.H, padded_);
    if (w.gain_c) gain_c_ = padded_rows(w.gain_c, 1, p_.H, padded_), bias_c_ = padded_rows(w.bias_c, 1, p_.H, padded_);
    if (w.P) P_ = pack_gates<1>(w.P, p_.R, p_.H, 0), narrow_ = zeros<T>(p_.B * padded_);
  }

  // f(state, kept, bytes) for each row of the part that runs at step t, one of those whose state is kept.
  template <class F>
  void exchange(int64_t t, const Part& part, const F& f) {
    const int64_t first = part.left * L, bytes = (part.right - part.left) * L * sizeof(T);
    for (int64_t rank = part.first; rank < std::min(part.end, order_.running[t]); ++rank) {
      T* kept = kept_state<T>(p_, t, rank, Cell::has_c);
      if (P_) f(h_[t & 1].get() + rank * padded_h_, kept, padded_h_ * sizeof(T));  // then units are never divided
      else f(h_[t & 1].get() + rank * padded_h_ + first, kept + first, bytes);
      if (c_) f(c_.get() + rank * padded_ + first, kept + padded_h_ + first, bytes);
    }
  }

  // Steps [begin, end) of a part; `together` threads divide its units.
  void run(int64_t begin, int64_t end, const Part& part, Barrier& barrier, int together) {
    const int64_t steps = std::min(Chunk::steps(part, ldu_ * sizeof(T)), end - begin);
    const int64_t most = steps * (part.end - part.first);
    const auto x = allocate<T>(p_.U ? most * ldx_ : 0), u = allocate<T>(most * ldu_);
    const bool apart = Cell::shared_last || p_.with.gain;
    const auto sums = allocate<T>(apart ? (part.end - part.first) * ldu_ : 0);
    for (int64_t t = begin; t < end; t += steps) {
      const Chunk chunk(order_, part, t, std::min(t + steps, end));
      if (chunk.rows == 0) break;
      project(chunk, part, x.get(), u.get());
      for (int64_t now = t; now < chunk.end; ++now)
        if (const int64_t count = chunk.count(order_, now)) {
          if (p_.y && p_.kept && now % p_.every == 0)
            exchange(now, part, [](T* state, T* kept, int64_t bytes) { std::memcpy(kept, state, bytes); });
          T* here = u.get() + chunk.at(now, part.first) * ldu_;
          step(now, count, part, here, apart ? sums.get() : here, barrier, together);
          barrier.wait(together);
        }
    }
  }

  // u = U x + b for all rows of a chunk, U x normalised or not
  void project(const Chunk& chunk, const Part& part, T* x, T* u) const {
    chunk.each(order_, [&](int64_t rank, int64_t t) {
      const T* from = p_.x.data + order_.row[rank] * p_.x.row + t * p_.x.time;
      if (p_.U) std::memcpy(x + chunk.at(t, rank) * ldx_, from, p_.D * sizeof(T));
      else arrange(from, u + chunk.at(t, rank) * ldu_, part.left, part.right);
    });
    if (!p_.U) return;
    const auto panels = [&](auto G, const T* packed, int64_t at) {
      constexpr int P = panel<G>, each = G / P;
      const Start<T> start{gain_U_ ? nothing_.get() : bias_.get() + at, 0};
      run_panels<P>(packed, part.left * each, part.right * each, chunk.rows, x, ldx_, p_.D, &start, u + at, ldu_);
    };
    panels(std::integral_constant<int, before>{}, input_.get(), 0);
    if constexpr (Cell::second > 0) panels(std::integral_constant<int, Cell::second>{}, input_second_.get(), second_at_);
    if (!gain_U_) return;
    chunk.each(order_, [&](int64_t rank, int64_t t) {
      const auto at = [&](int64_t j, int g) { return gate(j, g); };
      const auto start = [&](int64_t j, int g) { return load<Vec<T>>(bias_.get() + gate(j, g)); };
      normalise_gates<Cell, 0, Cell::gates>(p_.H, u + chunk.at(t, rank) * ldu_, at, start, gain_U_.get(), padded_,
                                            saved_norm(t, rank, Cell::gates));
    });
  }

  // One row of gates side by side, in the order in which the products leave them.
  void arrange(const T* from, T* to, int64_t left, int64_t right) const {
    for (int64_t j = left; j < right; ++j)
      for (int g = 0; g < Cell::gates; ++g) store(to + gate(j, g), load_some(from + g * p_.H + j * L, p_.H - j * L));
  }
  int64_t gate(int64_t j, int g) const {
    return g < before ? (j * before + g) * L : second_at_ + (j * Cell::second + g - before) * L;
  }

  // u and sums of the first `count` ranks of the part; both are the same unless a sum starts elsewhere.
  void step(int64_t t, int64_t count, const Part& part, T* u, T* sums, Barrier& barrier, int together) {
    const T* h = h_[t & 1].get() + part.first * padded_h_;
    const Start<T> zero{nothing_.get(), 0}, shared{u, ldu_, extra_.get()};
    if constexpr (Cell::first > 0) {
      constexpr int P = panel<Cell::first>, each = Cell::first / P;
      run_panels<P>(first_.get(), part.left * each, part.right * each, count, h, padded_h_, p_.R,
                    gain_ ? &zero : Cell::shared_last ? &shared : nullptr, sums, ldu_);
      if (gain_) normalise_sums<0, Cell::first>(t, count, part, u, sums);
    }
    if constexpr (Cell::second > 0) {
      finish<Cell::first, false>(t, count, part, u, sums);
      barrier.wait(together);
      run_panels<Cell::second, T>(second_.get(), part.left, part.right, count, q_.get() + part.first * padded_, padded_, p_.R,
                                  gain_ ? &zero : nullptr, sums + second_at_, ldu_);
      if (gain_) normalise_sums<Cell::first, Cell::gates>(t, count, part, u + second_at_, sums + second_at_);
      finish<Cell::second, true>(t, count, part, u, sums + second_at_);
    } else {
      finish<before, true>(t, count, part, u, sums);
    }
    if (P_) narrow(t, count, part);
  }

  // The sums of gates [first, end) of the rows of a step.
  template <int first, int end>
  void normalise_sums(int64_t t, int64_t count, const Part& part, const T* u, T* sums) const {
    for (int64_t rank = part.first; rank < part.first + count; ++rank, u += ldu_, sums += ldu_) {
      const auto at = [&](int64_t j, int g) { return (j * (end - first) + g - first) * L; };
      const auto start = [&](int64_t j, int g) {
        return load<Vec<T>>(Cell::shared_last && g == Cell::gates - 1 ? extra_.get() + j * L : u + at(j, g));
      };
      normalise_gates<Cell, first, end>(p_.H, sums, at, start, gain_.get(), padded_, saved_norm(t, rank, 0));
    }
  }

  T* saved(int64_t t, int64_t rank) const { return p_.saved ? p_.saved + (order_.begin[t] + rank) * p_.saved_row : nullptr; }

  // Behind the values of the cell, in the slots from `slot` on.
  SavedNorm<T> saved_norm(int64_t t, int64_t rank, int slot) const {
    T* save = saved(t, rank);
    if (!save) return {nullptr, nullptr, 0};
    return {save + (Cell::saves + slot) * padded_, saved_scales(save, p_.saved_row) + slot, padded_};
  }

  // What follows from the sums of G gates: the value that the second product reads, or the new state.
  template <int G, bool last>
  __attribute__((noinline)) void finish(int64_t t, int64_t count, const Part& part, const T* u, const T* sums) {
    const bool direct = !gain_c_ && !P_;  // what the cell returns is h
    const bool known = !p_.y;             // outputs and last states are, the second time
    for (int64_t rank = part.first; rank < part.first + count; ++rank, u += ldu_, sums += ldu_) {
      const int64_t row = order_.row[rank], mine = rank * padded_, H = p_.H;
      const bool ends = t + 1 == order_.length[rank], forget = !ends && p_.reset[row * p_.T + t + 1];
      const T *h = h_[t & 1].get() + rank * padded_h_, *extra = extra_.get();
      T *y = known ? nullptr : p_.y + (row * p_.T + t) * H, *c = c_.get() + mine, *z = z_.get() + mine, *q = q_.get() + mine;
      T* out = P_ ? narrow_.get() + mine : h_[(t + 1) & 1].get() + rank * padded_h_;
      Forward<T> f;
      f.relu = relu_;
      f.normed = bool(gain_c_);
      f.stride = padded_;
      f.save = p_.saved ? saved(t, rank) + part.left * L : nullptr;
      for (int64_t j = part.left; j < part.right; ++j) {
        Vec<T> a[G];
        for (int g = 0; g < G; ++g) a[g] = load<Vec<T>>(sums + (j * G + g) * L);
        f.u = u + j * before * L;
        f.extra = load<Vec<T>>(extra + j * L);
        f.peephole = peephole_ ? peephole_.get() + j * L : nullptr;
        f.h = Cell::has_c ? Vec<T>{} : load<Vec<T>>(h + j * L);  // a cell with c goes by that
        if constexpr (!last) {
          store(q + j * L, Cell::template between<T>(a, f));
          store(z + j * L, f.z);
        } else {
          if (Cell::has_c) f.c = load<Vec<T>>(c + j * L);
          if (Cell::second > 0) f.z = load<Vec<T>>(z + j * L);
          const Vec<T> now = Cell::template forward<T>(a, f);
          if (direct && !known) store_some(y + j * L, now, H - j * L);
          store(out + j * L, direct && forget ? Vec<T>{} : now);
          if (Cell::has_c) store(c + j * L, direct && forget ? Vec<T>{} : f.c);
        }
        if (f.save) f.save += L;
      }
      if (!last) continue;
      if (gain_c_)
        through_norm(H, c, gain_c_.get(), bias_c_.get(), out, p_.saved ? saved_scales(saved(t, rank), p_.saved_row) + 1 : nullptr);
      if (ends && Cell::has_c && !known) end(p_.c, row, part, c, H);
      if (!direct && forget) std::memset(c, 0, padded_ * sizeof(T));
      if (P_) continue;
      if (!direct && !known) std::memcpy(y, out, H * sizeof(T));
      if (ends && !known) end(p_.h, row, part, out, H);
      if (!direct && forget) std::memset(out, 0, padded_h_ * sizeof(T));
    }
  }

  // h = P times what the cells returned
  void narrow(int64_t t, int64_t count, const Part& part) {
    const Start<T> zero{nothing_.get(), 0};
    T* next = h_[(t + 1) & 1].get() + part.first * padded_h_;
    run_panels<1, T>(P_.get(), 0, (p_.R + L - 1) / L, count, narrow_.get() + part.first * padded_, padded_, p_.H, &zero, next,
                     padded_h_);
    for (int64_t rank = part.first; rank < part.first + count; ++rank, next += padded_h_) {
      const int64_t row = order_.row[rank];
      const bool ends = t + 1 == order_.length[rank];
      if (p_.y) std::memcpy(p_.y + (row * p_.T + t) * p_.R, next, p_.R * sizeof(T));
      if (p_.y && ends) std::memcpy(p_.h + row * p_.R, next, p_.R * sizeof(T));
      if (!ends && p_.reset[row * p_.T + t + 1]) std::memset(next, 0, padded_h_ * sizeof(T));
    }
  }

  // A state after the last step of a row.
  static void end(T* to, int64_t row, const Part& part, const T* from, int64_t H) {
    const int64_t left = part.left * L, count = std::min(part.right * L, H) - left;
    std::memcpy(to + row * H + left, from + left, count * sizeof(T));
  }

  GatedLoop<T> p_;
  bool relu_;
  Order order_;
  int64_t blocks_, padded_, padded_h_, second_at_, ldu_, ldx_;
  Division division_;
  Buffer<T> first_, second_, input_, input_second_, bias_, extra_, h_[2], c_, q_, z_;
  Buffer<T> nothing_, peephole_, gain_, gain_U_, gain_c_, bias_c_, P_, narrow_;
};

}  // namespace

template <class T>
void gated(int kind, const GatedLoop<T>& loop, int threads) {
  each_cell(kind, [&](auto cell, bool relu) {
    Run<decltype(cell), T> run(loop, relu, threads);
    run.prepare();
    team(run.threads(), [&](int thread, int count, Barrier& barrier) { run(thread, count, barrier); });
  });
}

template <class T>
std::unique_ptr<Again<T>> gated_again(int kind, const GatedLoop<T>& loop) {
  std::unique_ptr<Again<T>> again;
  each_cell(kind, [&](auto cell, bool relu) { again = std::make_unique<Run<decltype(cell), T>>(loop, relu, 1); });
  return again;
}

template Gated<float> gated<float>;
template Gated<double> gated<double>;
template std::unique_ptr<Again<float>> gated_again(int, const GatedLoop<float>&);
template std::unique_ptr<Again<double>> gated_again(int, const GatedLoop<double>&);

}  // namespace elman::ELMAN_NS
