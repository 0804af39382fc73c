// From the gradients of the sums of a chunk of steps to those of the inputs and weights: what gated_back.cpp calls before and
// after its loop over the steps.
#pragma once

#include "blocks.h"
#include "gated.h"
#include "gated_replay.h"
#include "kernels.h"
#include "parallel.h"
#include "rows.h"

namespace elman::ELMAN_NS {

// Gates of w (gates * H, columns) for products with gradients (run_pairs): [pair of vectors of columns][gate][wide k][2][lanes], the
// last vector by itself if their number is odd. They come in the order gate + rotation, gate + rotation + 1, ..., cyclic among
// the G from `gate` on.
template <class Real>
Buffer<Real> pack_back(const Real* w, int64_t H, int64_t columns, int64_t wide, int gate, int G, int rotation) {
  constexpr int64_t L = lanes<Real>;
  auto packed = allocate<Real>((columns + L - 1) / L * G * wide * L);
  Real* to = packed.get();
  for (int64_t n = 0; n < columns; n += 2 * L)
    for (int g = 0; g < G; ++g)
      for (int64_t k = 0; k < wide; ++k)
        for (int64_t i = n; i < std::min(n + 2 * L, columns); i += L, to += L) {
          const Real* from = w + ((gate + (g + rotation) % G) * H + k) * columns + i;
          store(to, k < H ? load_some(from, columns - i) : Vec<Real>{});
        }
  return packed;
}

// The sizes of a backward pass, and who computes what.
template <class Cell, class Real>
struct BackShape {
  static constexpr int L = lanes<Real>, P = 2 * L;
  static constexpr int products = Cell::first + Cell::second;

  GatedInputs<Real> in;
  int64_t H, R, D;
  GatedLayout layout;
  bool normed;                    // whether W h' is normalised
  bool projected;                 // whether h is P times what the cells return
  int64_t wide, wide_h, columns;  // H, R and D in whole panels
  int64_t ldg, ldh, ldx;          // from one row to the next: of the gradients of the gates, of h, of x
  Order order;
  Division division;
  Buffer<Real> zeros;

  BackShape(const GatedInputs<Real>& inputs, int threads)
      : in(inputs),
        H(in.weights.H),
        R(in.weights.R),
        D(in.weights.D),
        layout(gated_layout<Cell>(in.weights)),
        normed(in.weights.options.gain),
        projected(in.weights.options.P),
        wide(whole_panels(H)),
        wide_h(whole_panels(R)),
        columns(whole_panels(D)),
        ldg((slots() * H + 15) / 16 * 16 + 16),
        ldh(wide_h + 16),
        ldx(columns + 16),
        order(in.B, in.T, in.lengths, in.reset, in.every, in.backwards),
        division(order, wide / P, R * H * products, whole_rows(in.weights.options), threads),
        zeros(ELMAN_NS::zeros<Real>(std::max({columns, wide, wide_h}))) {}

  // Gradients lie in slots of H, those of the sums side by side and those of u too. They are the same slots, but for the last sum
  // where it starts elsewhere: its own comes first and that of u last. Where sums are normalised, none are the same.
  static constexpr int rotation = Cell::shared_last ? Cell::gates - 1 : 0;
  static constexpr bool starts_elsewhere(int gate) { return Cell::shared_last && gate == Cell::gates - 1; }
  int slots() const { return normed ? 2 * Cell::gates : Cell::gates + Cell::shared_last; }
  int sum_slot(int gate) const { return normed || !Cell::shared_last ? gate : (gate + 1) % Cell::gates; }
  int input_slot(int gate) const { return normed ? Cell::gates + gate : gate + Cell::shared_last; }

  // The part's share of `width` columns; where h is projected, rows alone are divided.
  std::pair<int64_t, int64_t> share(const Part& part, int64_t width) const {
    if (projected) return {0, width};
    return {part.left * P, std::min(part.right * P, width)};
  }

  // Steps that are taken at a time.
  int64_t steps(int64_t ranks) const {
    return std::max<int64_t>(std::min(Chunk::steps({0, ranks, 0, 0, 0}, ldg * sizeof(Real)), in.every), 1);
  }

  static int64_t whole_panels(int64_t n) { return (n + P - 1) / P * P; }
};

// What the rows of a chunk need and leave behind, and the gradients of the weights that a part of the ranks adds up.
// x, h and q are panels, [pair of vectors of columns][row][2][lanes].
template <class Real>
struct BackWork {
  int64_t rows;
  Buffer<Real> x, h, q, gy, g, gx, inner;
  Buffer<Real> gU, gb, gw, gextra, gpeephole, ggain, ggain_U, ggain_c, gbias_c, gP;
};

// to = the sum of the parts, in their order; each has rows of `columns` numbers, `stride` apart.
template <class Real>
void sum_of_parts(int threads, Real* to, int64_t rows, int64_t columns, int64_t stride, const std::vector<const Real*>& parts) {
  parallel(threads_for(rows * columns, WorthAThread::elements, threads), rows, [&](int64_t first, int64_t end) {
    for (int64_t m = first; m < end; ++m) std::memcpy(to + m * columns, parts[0] + m * stride, columns * sizeof(Real));
    for (size_t i = 1; i < parts.size(); ++i)
      for (int64_t m = first; m < end; ++m) {
        const Real* more = parts[i] + m * stride;
        Real* sum = to + m * columns;
        for (int64_t n = 0; n < columns; ++n) sum[n] += more[n];
      }
  });
}

template <class Cell, class Real>
class Gradients {
  using Shape = BackShape<Cell, Real>;
  using Work = BackWork<Real>;
  static constexpr int L = Shape::L, P = Shape::P;

 public:
  Gradients(const Shape& shape, const GatedArriving<Real>& arriving, const GatedGradients<Real>& gradients)
      : s_(shape), arriving_(arriving), to_(gradients) {
    if (s_.in.weights.U && to_.gx) input_ = pack_back(s_.in.weights.U, s_.H, s_.D, s_.H, 0, Cell::gates, 0);
    if (to_.gx) prefer_huge_pages(to_.gx, s_.in.B * s_.in.T * s_.D * sizeof(Real));
    const Division& d = s_.division;
    work_.resize(d.parts());
    if (!d.by_rows) work_[0] = make(s_.in.B);
  }

  // What a part works with. Where the ranks are divided, the thread that has them makes it.
  Work& work(const Part& part) {
    if (s_.division.by_rows) work_[part.number] = make(part.end - part.first);
    return work_[part.number];
  }

  // The arrays of the caller have the steps of a row side by side; the loop and the products want the rows of a step.
  void gather(const Chunk& chunk, const Part& part, Work& work, int thread, int threads) const {
    const auto [left, right] = s_.share(part, s_.R);
    chunk.each(s_.order, [&, left = left, right = right](int64_t rank, int64_t t) {
      const int64_t row = s_.order.row[rank], at = chunk.at(t, rank);
      const int64_t time = s_.order.time(rank, t);
      if (rank + 1 < part.end && t < s_.order.length[rank + 1]) fetch(rank + 1, t);
      const Real* h = s_.order.begins(rank, t) ? s_.zeros.get()
                      : t > 0                  ? arriving_.y + s_.order.place(rank, t - 1) * arriving_.ldy
                                               : s_.in.h0 + row * s_.R;
      scatter(h, left, right, work.h.get(), at, work.rows);
      std::memcpy(work.gy.get() + at * s_.ldh + left,
                  arriving_.gy.data + row * arriving_.gy.row + time * arriving_.gy.time + left, (right - left) * sizeof(Real));
      if (to_.gU && (s_.division.by_rows || rank % threads == thread))
        scatter(s_.in.x.data + row * s_.in.x.row + time * s_.in.x.time, 0, s_.D, work.x.get(), at, work.rows);
    });
  }

  // A step that comes soon, that of the next rank: of each rank there are too few for processors to see where the next one lies.
  void fetch(int64_t rank, int64_t t) const {
    const int64_t row = s_.order.row[rank], time = s_.order.time(rank, t);
    constexpr int64_t line = cache_line / sizeof(Real);
    const auto all = [](const Real* from, int64_t count) {
      for (int64_t n = 0; n < count; n += line) __builtin_prefetch(from + n);
    };
    all(arriving_.y + s_.order.place(rank, t) * arriving_.ldy, s_.R);
    all(arriving_.gy.data + row * arriving_.gy.row + time * arriving_.gy.time, s_.R);
    if (to_.gU) all(s_.in.x.data + row * s_.in.x.row + time * s_.in.x.time, s_.D);
  }

  // Columns [left, right) of one row into panels
  static void scatter(const Real* from, int64_t left, int64_t right, Real* panels, int64_t row, int64_t rows) {
    int64_t n = left;
    for (; n + P <= right; n += P) std::memcpy(panels + n * rows + row * P, from + n, P * sizeof(Real));
    if (n < right) std::memcpy(panels + n * rows + row * P, from + n, (right - n) * sizeof(Real));
  }

  // What the rows of a chunk add to the gradients of the weights, and the gradients of their inputs.
  void products(const Chunk& chunk, const Part& part, Work& work, Real* packed_g, int thread, int threads) const {
    const int64_t M = chunk.rows, left = part.left * P, right = std::min(part.right * P, s_.H);
    for (int slot = 0; slot < s_.slots() && right > left; ++slot) {
      const Real* g = work.g.get() + slot * s_.H;
      pack_outer(M, g, s_.ldg, left, right, packed_g);
      for (int i = 0; i < Cell::gates; ++i) {
        const Real* h = i >= Cell::gates - Cell::second ? work.q.get() : work.h.get();
        if (to_.gw && slot == s_.sum_slot(i))
          add_outer(M, packed_g, left, right, h, work.rows, s_.R, work.gw.get() + i * s_.H * s_.wide_h, s_.wide_h);
        if (slot != s_.input_slot(i)) continue;
        if (to_.gU)
          add_outer(M, packed_g, left, right, work.x.get(), work.rows, s_.D, work.gU.get() + i * s_.H * s_.columns, s_.columns);
        if (to_.gb && !s_.in.weights.options.gain_U) add_rows(M, part, g, nullptr, work.gb.get() + i * s_.wide);
      }
    }
    if (s_.projected) {
      pack_outer(M, work.gy.get(), s_.ldh, 0, s_.R, packed_g);
      add_outer(M, packed_g, 0, s_.R, work.q.get(), work.rows, s_.H, work.gP.get(), s_.wide);
    }
    if (to_.gextra && !s_.normed)  // the GRU's bias in front of r, or IndRNN's weights
      add_rows(M, part, work.g.get() + s_.sum_slot(Cell::gates - 1) * s_.H, Cell::shared_last ? nullptr : &work,
               work.gextra.get());
    if (to_.gx) inputs(chunk, work, thread, threads);
  }

  // to += sum over the rows of g, or of g * h. (Past the last unit, where nobody looks, that of other numbers.)
  void add_rows(int64_t M, const Part& part, const Real* g, const Work* times_h, Real* to) const {
    for (int64_t n = part.left * P; n < part.right * P; n += L) {
      Vec<Real> sum = load<Vec<Real>>(to + n);
      for (int64_t m = 0; m < M; ++m) {
        const Vec<Real> v = load<Vec<Real>>(g + m * s_.ldg + n);
        sum = sum + (times_h ? v * load<Vec<Real>>(times_h->h.get() + n / P * times_h->rows * P + m * P + n % P) : v);
      }
      store(to + n, sum);
    }
  }

  // gx = gu U, or gu itself where the inputs are projections
  void inputs(const Chunk& chunk, Work& work, int thread, int threads) const {
    const int64_t pairs = s_.columns / P;
    const int64_t left = s_.division.by_rows ? 0 : pairs * thread / threads,
                  right = s_.division.by_rows ? pairs : pairs * (thread + 1) / threads;
    const Real* gu = work.g.get() + s_.input_slot(0) * s_.H;
    const Start<Real> zero{s_.zeros.get(), 0};
    if (input_)
      run_pairs(input_.get(), left, right, s_.D, chunk.rows, gu, s_.ldg, Cell::gates * s_.H, &zero, work.gx.get(), s_.ldx);
    const int64_t first = left * P, count = std::min(right * P, s_.D) - first;
    chunk.each(s_.order, [&](int64_t rank, int64_t t) {
      Real* to = to_.gx + s_.order.place(rank, t) * s_.D;
      const int64_t at = chunk.at(t, rank);
      if (input_) {
        if (count > 0) std::memcpy(to + first, work.gx.get() + at * s_.ldx + first, count * sizeof(Real));
      } else if (thread == 0 || s_.division.by_rows) {
        for (int i = 0; i < Cell::gates; ++i) std::memcpy(to + i * s_.H, gu + at * s_.ldg + i * s_.H, s_.H * sizeof(Real));
      }
    });
  }

  // The gradients of the weights: what all parts have added up, in their order.
  void add_up_parts(int threads) const {
    add_up(threads, to_.gw, Cell::gates * s_.H, s_.R, s_.wide_h, &Work::gw);
    add_up(threads, to_.gU, Cell::gates * s_.H, s_.D, s_.columns, &Work::gU);
    add_up(1, to_.gb, Cell::gates, s_.H, s_.wide, &Work::gb);
    add_up(1, to_.gextra, 1, s_.H, s_.wide, &Work::gextra);
    add_up(1, to_.options.peephole, Cell::gates - 1, s_.H, s_.wide, &Work::gpeephole);
    add_up(1, to_.options.gain, Cell::gates, s_.H, s_.wide, &Work::ggain);
    add_up(1, to_.options.gain_U, Cell::gates, s_.H, s_.wide, &Work::ggain_U);
    add_up(1, to_.options.gain_c, 1, s_.H, s_.wide, &Work::ggain_c);
    add_up(1, to_.options.bias_c, 1, s_.H, s_.wide, &Work::gbias_c);
    add_up(threads, to_.options.P, s_.R, s_.H, s_.wide, &Work::gP);
  }

 private:
  Work make(int64_t ranks) const {
    const int64_t rows = ranks * s_.steps(ranks);
    Work w;
    w.rows = rows;
    w.h = zeros<Real>(rows * s_.wide_h);
    w.gy = zeros<Real>(rows * s_.ldh);
    w.g = zeros<Real>(rows * s_.ldg + P);
    if (Cell::second > 0 || s_.projected) w.q = zeros<Real>(rows * s_.wide);
    w.gpeephole = zeros<Real>(Cell::gates * s_.wide);
    w.ggain = zeros<Real>(Cell::gates * s_.wide);
    w.ggain_U = zeros<Real>(Cell::gates * s_.wide);
    w.ggain_c = zeros<Real>(s_.wide);
    w.gbias_c = zeros<Real>(s_.wide);
    if (s_.in.weights.options.gain_c) w.inner = zeros<Real>(3 * s_.wide);
    if (s_.projected) w.gP = zeros<Real>(s_.R * s_.wide);
    if (to_.gU) w.x = zeros<Real>(rows * s_.columns), w.gU = zeros<Real>(Cell::gates * s_.H * s_.columns);
    if (input_) w.gx = allocate<Real>(rows * s_.ldx);
    if (to_.gw) w.gw = zeros<Real>(Cell::gates * s_.H * s_.wide_h);
    if (to_.gb) w.gb = zeros<Real>(Cell::gates * s_.wide);
    if (to_.gextra) w.gextra = zeros<Real>(s_.wide);
    return w;
  }

  void add_up(int threads, Real* to, int64_t rows, int64_t columns, int64_t stride, Buffer<Real> Work::* from) const {
    if (!to) return;
    std::vector<const Real*> parts;
    for (const Work& work : work_) parts.push_back((work.*from).get());
    sum_of_parts(threads, to, rows, columns, stride, parts);
  }

  const Shape& s_;
  GatedArriving<Real> arriving_;
  GatedGradients<Real> to_;
  Buffer<Real> input_;
  std::vector<Work> work_;
};

}  // namespace elman::ELMAN_NS
