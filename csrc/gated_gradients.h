// From the gradients of the sums of a chunk of steps to those of the inputs and weights: what gated_back.cpp calls before and
// after its loop over the steps.
#pragma once

#include "blocks.h"
#include "gated.h"
#include "kernels.h"
#include "parallel.h"
#include "rows.h"

namespace elman::ELMAN_NS {

// Gates of w (gates * H, columns) for the way back: [pair of vectors of columns][gate][wide k][2][lanes]. They come in the
// order gate + turn, gate + turn + 1, ..., cyclic among the G from `gate` on.
template <class T>
Buffer<T> pack_back(const T* w, int64_t H, int64_t columns, int64_t wide, int gate, int G, int turn) {
  constexpr int64_t P = 2 * lanes<T>;
  const int64_t pairs = (columns + P - 1) / P;
  auto packed = allocate<T>(pairs * G * wide * P);
  T* to = packed.get();
  for (int64_t j = 0; j < pairs; ++j)
    for (int g = 0; g < G; ++g)
      for (int64_t k = 0; k < wide; ++k, to += P) {
        const int64_t count = k < H ? std::min(columns - j * P, P) : 0;
        if (count > 0) std::memcpy(to, w + ((gate + (g + turn) % G) * H + k) * columns + j * P, count * sizeof(T));
        std::fill(to + count, to + P, T(0));
      }
  return packed;
}

template <class Cell, class T>
class Gradients {
 public:
  int threads() const { return division_.threads; }

  // The gradients of the weights: what all parts have added up, in their order.
  void finish(int threads) const {
    add_up(threads, p_.gw, Cell::gates * p_.H, p_.R, wide_h_, [](const Work& w) { return w.gw.get(); });
    add_up(threads, p_.gU, Cell::gates * p_.H, p_.D, columns_, [](const Work& w) { return w.gU.get(); });
    add_up(1, p_.gb, Cell::gates, p_.H, wide_, [](const Work& w) { return w.gb.get(); });
    add_up(1, p_.gextra, 1, p_.H, wide_, [](const Work& w) { return w.gextra.get(); });
    add_up(1, p_.gwith.peephole, Cell::gates - 1, p_.H, wide_, [](const Work& w) { return w.gpeephole.get(); });
    add_up(1, p_.gwith.gain, Cell::gates, p_.H, wide_, [](const Work& w) { return w.ggain.get(); });
    add_up(1, p_.gwith.gain_U, Cell::gates, p_.H, wide_, [](const Work& w) { return w.ggain_U.get(); });
    add_up(1, p_.gwith.gain_c, 1, p_.H, wide_, [](const Work& w) { return w.ggain_c.get(); });
    add_up(1, p_.gwith.bias_c, 1, p_.H, wide_, [](const Work& w) { return w.gbias_c.get(); });
    add_up(threads, p_.gwith.P, p_.R, p_.H, wide_, [](const Work& w) { return w.gP.get(); });
  }

 protected:
  static constexpr int L = lanes<T>, P = 2 * L;
  static constexpr int sums = Cell::first + Cell::second;
  // Gradients lie in slots, those of the sums side by side and those of u too. They are the same slots, but for the last sum
  // where it starts elsewhere: its own comes first and that of u last. Where sums are normalised, all are apart.
  static constexpr int turn = Cell::shared_last ? Cell::gates - 1 : 0;
  int slots() const { return p_.with.gain ? 2 * Cell::gates : Cell::gates + Cell::shared_last; }
  int sum_slot(int gate) const { return p_.with.gain || !Cell::shared_last ? gate : (gate + 1) % Cell::gates; }
  int input_slot(int gate) const { return p_.with.gain ? Cell::gates + gate : gate + Cell::shared_last; }

  // What the rows of a chunk need and leave behind, and the gradients of the weights that a part of the ranks adds up.
  // x, h and q are panels, [pair of vectors of columns][row][2][lanes].
  struct Work {
    int64_t rows;
    Buffer<T> x, h, q, gy, g, gx, inner;
    Buffer<T> gU, gb, gw, gextra, gpeephole, ggain, ggain_U, ggain_c, gbias_c, gP;
  };
  static constexpr bool own(int gate) { return Cell::shared_last && gate == Cell::gates - 1; }

  Gradients(const GatedLoopBack<T>& loop, int threads)
      : p_(loop),
        order_(p_.B, p_.T, p_.lengths, p_.every),
        padded_(padded_width<T>(p_.H)),
        wide_(whole_panels(p_.H)),
        wide_h_(whole_panels(p_.R)),
        columns_(whole_panels(p_.D)),
        ldg_(slots() * wide_ + 16),
        ldh_(wide_h_ + 16),
        ldx_(columns_ + 16),
        division_(order_, wide_ / P, p_.R * p_.H * sums, p_.with.gain || p_.with.P, threads),
        nothing_(zeros<T>(std::max({columns_, wide_, wide_h_}))) {
    if (p_.U && p_.gx) input_ = pack_back(p_.U, p_.H, p_.D, wide_, 0, Cell::gates, 0);
    if (p_.gx) prefer_huge_pages(p_.gx, p_.B * p_.T * p_.D * sizeof(T));
    for (int i = 0; i < division_.parts(); ++i) work_.push_back(make(division_.by_rows ? division_.cut[i + 1] - division_.cut[i] : p_.B));
  }

  // The arrays of the caller have the steps of a row side by side; the loop and the products want the rows of a step.
  void gather(const Chunk& chunk, const Part& part, Work& work, int thread, int threads) const {
    const auto [left, right] = columns(part, p_.R);
    chunk.each(order_, [&, left = left, right = right](int64_t rank, int64_t t) {
      const int64_t row = order_.row[rank], at = chunk.at(t, rank);
      const T* h = p_.reset[row * p_.T + t] ? nothing_.get() : t > 0 ? p_.y + (row * p_.T + t - 1) * p_.R : p_.h0 + row * p_.R;
      scatter(h, left, right, work.h.get(), at, work.rows);
      std::memcpy(work.gy.get() + at * ldh_ + left, p_.gy.data + row * p_.gy.row + t * p_.gy.time + left,
                  (right - left) * sizeof(T));
      if (p_.gU && (division_.by_rows || rank % threads == thread))
        scatter(p_.x.data + row * p_.x.row + t * p_.x.time, 0, p_.D, work.x.get(), at, work.rows);
    });
  }

  // Columns [left, right) of one row into panels
  static void scatter(const T* from, int64_t left, int64_t right, T* panels, int64_t row, int64_t rows) {
    int64_t n = left;
    for (; n + P <= right; n += P) std::memcpy(panels + n * rows + row * P, from + n, P * sizeof(T));
    if (n < right) std::memcpy(panels + n * rows + row * P, from + n, (right - n) * sizeof(T));
  }

  // What the rows of a chunk add to the gradients of the weights, and the gradients of their inputs.
  void products(const Chunk& chunk, const Part& part, Work& work, T* six, int thread, int threads) const {
    const int64_t M = chunk.rows, left = part.left * P, right = std::min(part.right * P, p_.H);
    for (int slot = 0; slot < slots() && right > left; ++slot) {
      const T* g = work.g.get() + slot * wide_;
      pack_outer(M, g, ldg_, left, right, six);
      for (int i = 0; i < Cell::gates; ++i) {
        const T* h = i >= Cell::gates - Cell::second ? work.q.get() : work.h.get();
        if (p_.gw && slot == sum_slot(i))
          add_outer(M, six, left, right, h, work.rows, wide_h_ / P, work.gw.get() + i * p_.H * wide_h_, wide_h_);
        if (slot != input_slot(i)) continue;
        if (p_.gU)
          add_outer(M, six, left, right, work.x.get(), work.rows, columns_ / P, work.gU.get() + i * p_.H * columns_, columns_);
        if (p_.gb && !p_.with.gain_U) add_rows(M, part, g, nullptr, work.gb.get() + i * wide_);
      }
    }
    if (p_.with.P) {
      pack_outer(M, work.gy.get(), ldh_, 0, p_.R, six);
      add_outer(M, six, 0, p_.R, work.q.get(), work.rows, wide_ / P, work.gP.get(), wide_);
    }
    if (p_.gextra && !p_.with.gain)  // the GRU's bias in front of r, or IndRNN's weights
      add_rows(M, part, work.g.get() + sum_slot(Cell::gates - 1) * wide_, Cell::shared_last ? nullptr : &work, work.gextra.get());
    if (p_.gx) inputs(chunk, work, thread, threads);
  }

  // to += sum over the rows of g, or of g * h
  void add_rows(int64_t M, const Part& part, const T* g, const Work* times_h, T* to) const {
    for (int64_t n = part.left * P; n < part.right * P; n += L) {
      Vec<T> sum = load<Vec<T>>(to + n);
      for (int64_t m = 0; m < M; ++m) {
        const Vec<T> v = load<Vec<T>>(g + m * ldg_ + n);
        sum = sum + (times_h ? v * load<Vec<T>>(times_h->h.get() + n / P * times_h->rows * P + m * P + n % P) : v);
      }
      store(to + n, sum);
    }
  }

  // gx = gu U, or gu itself where the inputs are projections
  void inputs(const Chunk& chunk, Work& work, int thread, int threads) const {
    const int64_t pairs = columns_ / P;
    const int64_t left = division_.by_rows ? 0 : pairs * thread / threads, right = division_.by_rows ? pairs : pairs * (thread + 1) / threads;
    const T* gu = work.g.get() + input_slot(0) * wide_;
    const Start<T> zero{nothing_.get(), 0};
    if (input_)
      run_panels<2, T>(input_.get(), left, right, chunk.rows, gu, ldg_, Cell::gates * wide_, &zero, work.gx.get(), ldx_);
    const int64_t first = left * P, count = std::min(right * P, p_.D) - first;
    chunk.each(order_, [&](int64_t rank, int64_t t) {
      T* to = p_.gx + (order_.row[rank] * p_.T + t) * p_.D;
      const int64_t at = chunk.at(t, rank);
      if (input_) {
        if (count > 0) std::memcpy(to + first, work.gx.get() + at * ldx_ + first, count * sizeof(T));
      } else if (thread == 0 || division_.by_rows) {
        for (int i = 0; i < Cell::gates; ++i) std::memcpy(to + i * p_.H, gu + at * ldg_ + i * wide_, p_.H * sizeof(T));
      }
    });
  }

  // The part's share of `width` columns; where h is narrower than the cell, rows alone are divided.
  std::pair<int64_t, int64_t> columns(const Part& part, int64_t width) const {
    if (p_.with.P) return {0, width};
    return {part.left * P, std::min(part.right * P, width)};
  }

  static int64_t whole_panels(int64_t n) { return (n + P - 1) / P * P; }

  int64_t steps(int64_t ranks) const {
    return std::max<int64_t>(std::min(Chunk::steps({0, ranks, 0, 0, 0}, ldg_ * sizeof(T)), p_.every), 1);
  }

  GatedLoopBack<T> p_;
  Order order_;
  int64_t padded_, wide_, wide_h_, columns_, ldg_, ldh_, ldx_;
  Division division_;
  Buffer<T> nothing_;
  std::vector<Work> work_;

 private:
  Work make(int64_t ranks) const {
    const int64_t rows = ranks * steps(ranks);
    Work w;
    w.rows = rows;
    w.h = zeros<T>(rows * wide_h_);
    w.gy = zeros<T>(rows * ldh_);
    w.g = zeros<T>(rows * ldg_);
    if (Cell::second > 0 || p_.with.P) w.q = zeros<T>(rows * wide_);
    w.gpeephole = zeros<T>(Cell::gates * wide_);
    w.ggain = zeros<T>(Cell::gates * wide_);
    w.ggain_U = zeros<T>(Cell::gates * wide_);
    w.ggain_c = zeros<T>(wide_);
    w.gbias_c = zeros<T>(wide_);
    if (p_.with.gain_c) w.inner = zeros<T>(3 * wide_);
    if (p_.with.P) w.gP = zeros<T>(p_.R * wide_);
    if (p_.gU) w.x = zeros<T>(rows * columns_), w.gU = zeros<T>(Cell::gates * p_.H * columns_);
    if (input_) w.gx = allocate<T>(rows * ldx_);
    if (p_.gw) w.gw = zeros<T>(Cell::gates * p_.H * wide_h_);
    if (p_.gb) w.gb = zeros<T>(Cell::gates * wide_);
    if (p_.gextra) w.gextra = zeros<T>(wide_);
    return w;
  }

  template <class F>
  void add_up(int threads, T* to, int64_t rows, int64_t columns, int64_t stride, const F& from) const {
    if (!to) return;
    parallel(threads, rows, [&](int64_t first, int64_t end) {
      for (int64_t m = first; m < end; ++m)
        for (int64_t n = 0; n < columns; ++n) {
          T sum = 0;
          for (const Work& w : work_) sum += from(w)[m * stride + n];
          to[m * columns + n] = sum;
        }
    });
  }

  Buffer<T> input_;
};

}  // namespace elman::ELMAN_NS
