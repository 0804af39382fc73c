// The gated loop, forward: time inside, rows or units over the threads.
//
// Sums run over ascending k, first over the input and then over the state (product.h), so neither the order of rows, nor
// threads, nor the batch, nor where a sequence is cut, changes a bit. A reset is a branch: the step before writes zeros where
// the next one will look for its state. Units are padded to whole vectors: weights of zero keep the rest of them zero.
#include "gated.h"

#include "blocks.h"
#include "kernels.h"
#include "parallel.h"
#include "rows.h"

namespace elman::ELMAN_NS {
namespace {

template <class Cell, class T>
class Run {
  static constexpr int L = lanes<T>;
  static constexpr int before = Cell::gates - Cell::second;  // gates that are known before the second product
  static constexpr int sums = Cell::first + Cell::second;

 public:
  Run(const GatedLoop<T>& loop, bool relu, int threads)
      : p_(loop),
        relu_(relu),
        order_(p_.B, p_.T, p_.lengths),
        blocks_((p_.H + L - 1) / L),
        padded_(padded_width<T>(p_.H)),
        second_at_(blocks_ * before * L),
        ldu_(blocks_ * Cell::gates * L + 16),
        ldx_((p_.D + 15) / 16 * 16 + 16),
        division_(order_, blocks_, p_.H * p_.H * sums, threads) {
    if constexpr (Cell::first > 0) first_ = pack_gates<Cell::first>(p_.w, p_.H, p_.H, 0);
    if constexpr (Cell::second > 0) second_ = pack_gates<Cell::second>(p_.w, p_.H, p_.H, Cell::first);
    if (p_.U) {
      input_ = pack_gates<before>(p_.U, p_.H, p_.D, 0);
      if constexpr (Cell::second > 0) input_second_ = pack_gates<Cell::second>(p_.U, p_.H, p_.D, before);
      bias_ = zeros<T>(ldu_);
      if (p_.b) arrange(p_.b, bias_.get(), 0, blocks_);
    }
    extra_ = padded_copy(p_.extra, p_.extra_size, p_.H, padded_);
    const int64_t size = p_.B * padded_;
    h_[0] = allocate<T>(size);
    h_[1] = allocate<T>(size);
    if (Cell::has_c) c_ = allocate<T>(size);
    if (Cell::second > 0) q_ = allocate<T>(size), z_ = allocate<T>(size);
    prefer_huge_pages(p_.y, p_.B * p_.T * p_.H * sizeof(T));
    if (p_.saved) prefer_huge_pages(p_.saved, order_.begin.back() * Cell::saves * padded_ * sizeof(T));
    begin(h_[0].get(), p_.h0, p_.h);
    if (Cell::has_c) begin(c_.get(), p_.c0, p_.c);
  }

  void operator()(int thread, int threads, Barrier& barrier) {
    division_.each(thread, threads, [&](Part part) { run(part, barrier, threads); });
    for (int64_t rank = thread; rank < p_.B; rank += threads) {
      T* past = p_.y + (order_.row[rank] * p_.T + order_.length[rank]) * p_.H;
      std::fill_n(past, (p_.T - order_.length[rank]) * p_.H, T(0));
    }
  }

  int threads() const { return division_.threads; }

 private:
  // The state before the first step, and the last state of rows that have none.
  void begin(T* state, const T* from, T* last) {
    for (int64_t rank = 0; rank < p_.B; ++rank) {
      const int64_t row = order_.row[rank];
      const bool empty = order_.length[rank] == 0;
      std::memset(state + rank * padded_, 0, padded_ * sizeof(T));
      if (empty) std::memcpy(last + row * p_.H, from + row * p_.H, p_.H * sizeof(T));
      else if (!p_.reset[row * p_.T]) std::memcpy(state + rank * padded_, from + row * p_.H, p_.H * sizeof(T));
    }
  }

  void run(Part part, Barrier& barrier, int threads) {
    const int64_t steps = std::min(Chunk::steps(part, ldu_ * sizeof(T)), p_.T);
    const int64_t most = steps * (part.end - part.first);
    const auto x = allocate<T>(p_.U ? most * ldx_ : 0), u = allocate<T>(most * ldu_);
    const auto sums = allocate<T>(Cell::shared_last ? (part.end - part.first) * ldu_ : 0);
    for (int64_t t = 0; t < p_.T; t += steps) {
      const Chunk chunk(order_, part, t, std::min(t + steps, p_.T));
      if (chunk.rows == 0) break;
      project(chunk, part, x.get(), u.get());
      for (int64_t now = t; now < chunk.end; ++now)
        if (const int64_t count = chunk.count(order_, now)) {
          T* here = u.get() + chunk.at(now, part.first) * ldu_;
          step(now, count, part, here, Cell::shared_last ? sums.get() : here, barrier, threads);
          if (!division_.by_rows) barrier.wait(threads);
        }
    }
  }

  // u = U x + b for all rows of a chunk
  void project(const Chunk& chunk, const Part& part, T* x, T* u) const {
    chunk.each(order_, [&](int64_t rank, int64_t t) {
      const T* from = p_.x.data + order_.row[rank] * p_.x.row + t * p_.x.time;
      if (p_.U) std::memcpy(x + chunk.at(t, rank) * ldx_, from, p_.D * sizeof(T));
      else arrange(from, u + chunk.at(t, rank) * ldu_, part.left, part.right);
    });
    if (!p_.U) return;
    const auto panels = [&](auto G, const T* packed, int64_t at) {
      constexpr int P = panel<G>, each = G / P;
      const Start<T> start{bias_.get() + at, 0};
      run_panels<P>(packed, part.left * each, part.right * each, chunk.rows, x, ldx_, p_.D, &start, u + at, ldu_);
    };
    panels(std::integral_constant<int, before>{}, input_.get(), 0);
    if constexpr (Cell::second > 0) panels(std::integral_constant<int, Cell::second>{}, input_second_.get(), second_at_);
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
  void step(int64_t t, int64_t count, const Part& part, T* u, T* sums, Barrier& barrier, int threads) {
    const T* h = h_[t & 1].get() + part.first * padded_;
    if constexpr (Cell::first > 0) {
      constexpr int P = panel<Cell::first>, each = Cell::first / P;
      const Start<T> start{u, ldu_, extra_.get()};
      run_panels<P>(first_.get(), part.left * each, part.right * each, count, h, padded_, p_.H,
                    Cell::shared_last ? &start : nullptr, sums, ldu_);
    }
    if constexpr (Cell::second > 0) {
      finish<Cell::first, false>(t, count, part, u, sums);
      if (!division_.by_rows) barrier.wait(threads);
      run_panels<Cell::second, T>(second_.get(), part.left, part.right, count, q_.get() + part.first * padded_, padded_,
                                  p_.H, nullptr, u + second_at_, ldu_);
      finish<Cell::second, true>(t, count, part, u, u + second_at_);
    } else {
      finish<before, true>(t, count, part, u, sums);
    }
  }

  // What follows from the sums of G gates: the value that the second product reads, or the new state.
  template <int G, bool last>
  __attribute__((noinline)) void finish(int64_t t, int64_t count, const Part& part, const T* u, const T* sums) {
    for (int64_t rank = part.first; rank < part.first + count; ++rank, u += ldu_, sums += ldu_) {
      const int64_t row = order_.row[rank], mine = rank * padded_, H = p_.H;
      const bool ends = t + 1 == order_.length[rank], forget = !ends && p_.reset[row * p_.T + t + 1];
      const T *h = h_[t & 1].get() + mine, *extra = extra_.get();
      T *y = p_.y + (row * p_.T + t) * H, *next = h_[(t + 1) & 1].get() + mine, *c = c_.get() + mine;
      T *z = z_.get() + mine, *q = q_.get() + mine;
      Forward<T> f;
      f.relu = relu_;
      f.stride = padded_;
      f.save = p_.saved ? p_.saved + (order_.begin[t] + rank) * Cell::saves * padded_ + part.left * L : nullptr;
      for (int64_t j = part.left; j < part.right; ++j) {
        Vec<T> a[G];
        for (int g = 0; g < G; ++g) a[g] = load<Vec<T>>(sums + (j * G + g) * L);
        f.u = u + j * before * L;
        f.extra = load<Vec<T>>(extra + j * L);
        f.h = load<Vec<T>>(h + j * L);
        if constexpr (!last) {
          store(q + j * L, Cell::template between<T>(a, f));
          store(z + j * L, f.z);
        } else {
          if (Cell::has_c) f.c = load<Vec<T>>(c + j * L);
          if (Cell::second > 0) f.z = load<Vec<T>>(z + j * L);
          const Vec<T> now = Cell::template forward<T>(a, f);
          store_some(y + j * L, now, H - j * L);
          store(next + j * L, forget ? Vec<T>{} : now);
          if (Cell::has_c) store(c + j * L, forget ? Vec<T>{} : f.c);
        }
        if (f.save) f.save += L;
      }
      if (last && ends) end(row, part, next, c);
    }
  }

  // The state after the last step of a row.
  void end(int64_t row, const Part& part, const T* h, const T* c) const {
    const int64_t left = part.left * L, count = std::min(part.right * L, p_.H) - left;
    std::memcpy(p_.h + row * p_.H + left, h + left, count * sizeof(T));
    if (Cell::has_c) std::memcpy(p_.c + row * p_.H + left, c + left, count * sizeof(T));
  }

  GatedLoop<T> p_;
  bool relu_;
  Order order_;
  int64_t blocks_, padded_, second_at_, ldu_, ldx_;
  Division division_;
  Buffer<T> first_, second_, input_, input_second_, bias_, extra_, h_[2], c_, q_, z_;
};

}  // namespace

template <class T>
void gated(int kind, const GatedLoop<T>& loop, int threads) {
  each_cell(kind, [&](auto cell, bool relu) {
    Run<decltype(cell), T> run(loop, relu, threads);
    team(run.threads(), [&](int thread, int count, Barrier& barrier) { run(thread, count, barrier); });
  });
}

template Gated<float> gated<float>;
template Gated<double> gated<double>;

}  // namespace elman::ELMAN_NS
