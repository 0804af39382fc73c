// The gated loop: time inside, rows or units over the threads, forward and backward.
//
// Rows are handled in the order of their lengths, longest first (their rank), so that the rows still running at a step
// are the first so many, and a row past its length costs nothing. Sums run over ascending k from u onwards (product.h),
// so neither that order, nor threads, nor the batch, nor where a sequence is cut, changes a bit.
//
// A reset is a branch: the step before writes zeros where the next one will look for its state; the backward pass
// selects zero instead of what would have flowed back. Nothing is ever multiplied by zero to make it vanish.
#include "gated.h"

#include <numeric>
#include <vector>

#include "blocks.h"
#include "kernels.h"
#include "parallel.h"

namespace elman::ELMAN_NS {
namespace {

// ---- Who computes what ---------------------------------------------------------------------------------------------

struct Part {
  int64_t first, end;    // ranks
  int64_t left, right;   // blocks of units
};

// Rows by length, longest first; how many run at each step; where a step's saved values begin, counted in rows.
struct Order {
  std::vector<int64_t> row, length, running, begin;
  Order(int64_t B, int64_t T, const int64_t* lengths) : row(B), length(B), running(T + 1, 0), begin(T + 1, 0) {
    std::iota(row.begin(), row.end(), int64_t(0));
    std::stable_sort(row.begin(), row.end(), [&](int64_t a, int64_t b) { return lengths[a] > lengths[b]; });
    for (int64_t i = 0; i < B; ++i) length[i] = lengths[row[i]];
    for (int64_t t = 0, n = B; t < T; ++t) {
      while (n > 0 && length[n - 1] <= t) --n;
      running[t] = n;
      begin[t + 1] = begin[t] + n;
    }
  }
};

// Rows over threads where there are enough of them, cut where the sum of lengths is even; else units over threads.
struct Division {
  bool by_rows = true;
  int threads = 1;
  int64_t blocks;
  std::vector<int64_t> cut;

  Division(const Order& order, int64_t units, int64_t work, int wanted) : blocks(units) {
    const int64_t B = int64_t(order.row.size());
    threads = int(std::clamp<int64_t>(wanted, 1, std::max<int64_t>(B, 1)));
    if (wanted > 1 && B < 4 * wanted && !(B >= 2 * wanted && B % wanted == 0)) {
      const int64_t most = std::min<int64_t>(units, B * work / 8192);  // a barrier costs as much as some thousand sums
      if (most >= wanted || B < wanted) {
        by_rows = false;
        threads = int(std::clamp<int64_t>(most, 1, wanted));
      }
    }
    const int64_t total = std::accumulate(order.length.begin(), order.length.end(), int64_t(0));
    int64_t rank = 0, sum = 0;
    for (int i = 0; i <= threads; ++i) {
      while (rank < B && sum + order.length[rank] / 2 < total * i / threads) sum += order.length[rank++];
      cut.push_back(i == threads ? B : rank);
    }
  }

  // f(part) for what thread `i` of the `count` that really run has to do.
  template <class F>
  void each(int i, int count, const F& f) const {
    if (!by_rows) f(Part{0, cut.back(), blocks * i / count, blocks * (i + 1) / count});
    else
      for (; i < threads; i += count) f(Part{cut[i], cut[i + 1], 0, blocks});
  }
};

// Gate `g` of rows of w (gates * H, H) into [block][k][G][lanes], for gates [gate, gate + G).
template <class T>
Buffer<T> pack_gates(const T* w, int64_t H, int gate, int G) {
  constexpr int64_t L = lanes<T>;
  const int64_t blocks = (H + L - 1) / L;
  auto packed = allocate<T>(blocks * H * G * L);
  for (int64_t j = 0; j < blocks; ++j)
    for (int g = 0; g < G; ++g)
      pack_lanes(w + ((gate + g) * H + j * L) * H, H, std::min(L, H - j * L), H, packed.get() + j * H * G * L + g * L, G * L);
  return packed;
}

// The same rows for the way back: [pair of blocks][gate][padded k][2][lanes], lanes along the columns of w.
template <class T>
Buffer<T> pack_back(const T* w, int64_t H, int64_t padded, int gate, int G) {
  constexpr int64_t L = lanes<T>;
  const int64_t pairs = padded / (2 * L);
  auto packed = allocate<T>(pairs * G * padded * 2 * L);
  T* to = packed.get();
  for (int64_t j = 0; j < pairs; ++j)
    for (int g = 0; g < G; ++g)
      for (int64_t k = 0; k < padded; ++k, to += 2 * L) {
        const int64_t count = k < H ? std::clamp<int64_t>(H - j * 2 * L, 0, 2 * L) : 0;
        if (count > 0) std::memcpy(to, w + ((gate + g) * H + k) * H + j * 2 * L, count * sizeof(T));
        std::fill(to + count, to + 2 * L, T(0));
      }
  return packed;
}

// Rows of saved values begin on a cache line, whatever the instruction set.
template <class T>
int64_t padded_width(int64_t H) {
  constexpr int64_t line = 64 / sizeof(T);
  return (H + line - 1) / line * line;
}

template <class T>
Buffer<T> padded_copy(const T* x, int64_t count, int64_t H, int64_t padded) {
  auto to = allocate<T>(padded);
  for (int64_t i = 0; i < padded; ++i) to[i] = i >= H ? T(0) : count == 1 ? x[0] : x[i];
  return to;
}

// ---- Forward -------------------------------------------------------------------------------------------------------

template <class Cell, class T>
class Run {
  static constexpr int L = lanes<T>, scratch_width = 12 * L;  // at most 12 sums of a row at a time

 public:
  Run(const GatedLoop<T>& loop, bool relu, int threads)
      : p_(loop),
        relu_(relu),
        order_(p_.B, p_.T, p_.lengths),
        padded_(padded_width<T>(p_.H)),
        division_(order_, (p_.H + L - 1) / L, p_.H * p_.H * (Cell::first + Cell::second), threads) {
    if (Cell::first > 0) first_ = pack_gates(p_.w, p_.H, 0, Cell::first);
    if (Cell::second > 0) second_ = pack_gates(p_.w, p_.H, Cell::first, Cell::second);
    if (p_.extra) extra_ = padded_copy(p_.extra, p_.extra_size, p_.H, padded_);
    const int64_t size = p_.B * padded_;
    h_[0] = allocate<T>(size);
    h_[1] = allocate<T>(size);
    if (Cell::has_c) c_ = allocate<T>(size);
    if (Cell::second > 0) q_ = allocate<T>(size), z_ = allocate<T>(size);
    scratch_ = allocate<T>(p_.B * scratch_width * (division_.by_rows ? 1 : division_.threads));
    advise(p_.y, p_.B * p_.T * p_.H);
    if (p_.saved) advise(p_.saved, order_.begin.back() * Cell::saves * padded_);
    begin(h_[0].get(), p_.h0, p_.h);
    if (Cell::has_c) begin(c_.get(), p_.c0, p_.c);
  }

  void operator()(int thread, int threads, Barrier& barrier) {
    division_.each(thread, threads, [&](Part part) {
      T* scratch = scratch_.get() + (division_.by_rows ? part.first : thread * p_.B) * scratch_width;
      for (int64_t t = 0; t < p_.T; ++t) {
        const int64_t end = std::min(part.end, order_.running[t]);
        if (end <= part.first) break;
        step(t, {part.first, end, part.left, part.right}, scratch, barrier, threads);
        if (!division_.by_rows) barrier.wait(threads);
      }
    });
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

  const T* u(int64_t rank, int64_t t) const { return p_.u.data + order_.row[rank] * p_.u.row + t * p_.u.time; }

  void step(int64_t t, Part part, T* scratch, Barrier& barrier, int threads) {
    if constexpr (Cell::second > 0) {
      sweep<Cell::first, false>(t, part, first_.get(), h_[t & 1].get(), scratch);
      if (!division_.by_rows) barrier.wait(threads);
      sweep<Cell::second, true>(t, part, second_.get(), q_.get(), scratch);
    } else {
      sweep<Cell::first, true>(t, part, first_.get(), h_[t & 1].get(), scratch);
    }
  }

  // The sums of G gates over x, and what follows from them, for every rank and block of the part.
  template <int G, bool last>
  void sweep(int64_t t, Part part, const T* packed, const T* x, T* scratch) {
    if constexpr (G == 0) {
      for (; part.left < part.right; ++part.left) finish<1, last>(t, part, 1, nullptr);
    } else {
      const int gate = Cell::second > 0 && last ? Cell::first : 0;
      const Start<T> start{p_.u.data + t * p_.u.time + gate * p_.H, order_.row.data(), p_.u.row, p_.H, L,
                           Cell::shared_last ? extra_.get() : nullptr};
      const int64_t whole = std::max(part.left, std::min(part.right, p_.H / L));
      part.left = each_blocks_for<G>(part.end - part.first, part.left, whole, [&](auto C, int64_t j) {
        run_blocks<C, G, T>(packed, j, part.first, part.end, x, padded_, p_.H, &start, scratch, C * G * L);
        finish<G, last>(t, {part.first, part.end, j, j + C}, C, scratch);
      });
      if (part.left < part.right) {  // the last block is not full
        for (int64_t rank = part.first; rank < part.end; ++rank)
          for (int g = 0; g < G; ++g)
            store(scratch + ((rank - part.first) * G + g) * L, load_some(start.at(rank, g, G) + whole * L, p_.H - whole * L));
        run_blocks<1, G, T>(packed, whole, part.first, part.end, x, padded_, p_.H, nullptr, scratch, G * L);
        finish<G, last>(t, part, 1, scratch);
      }
    }
  }

  template <int G, bool last>
  __attribute__((noinline)) void finish(int64_t t, Part part, int blocks, const T* sums) {
    for (int64_t rank = part.first; rank < part.end; ++rank)
      for (int c = 0; c < blocks; ++c, sums += G * L) {
        Vec<T> a[G];
        for (int g = 0; g < G && Cell::first > 0; ++g) a[g] = load<Vec<T>>(sums + g * L);
        if constexpr (last) finish(t, rank, part.left + c, a);
        else between(t, rank, part.left + c, a);
      }
  }

  ELMAN_INLINE Forward<T> here(int64_t t, int64_t rank, int64_t j) const {
    const int64_t at = rank * padded_ + j * L;
    Forward<T> f;
    f.u = u(rank, t) + j * L;
    f.H = p_.H;
    f.count = p_.H - j * L;
    f.relu = relu_;
    f.extra = p_.extra ? load<Vec<T>>(extra_.get() + j * L) : Vec<T>{};
    f.h = load<Vec<T>>(h_[t & 1].get() + at);
    f.save = p_.saved ? p_.saved + (order_.begin[t] + rank) * Cell::saves * padded_ + j * L : nullptr;
    f.stride = padded_;
    return f;
  }

  ELMAN_INLINE void between(int64_t t, int64_t rank, int64_t j, const Vec<T>* sums) {
    Forward<T> f = here(t, rank, j);
    store(q_.get() + rank * padded_ + j * L, Cell::template between<T>(sums, f));
    store(z_.get() + rank * padded_ + j * L, f.z);
  }

  ELMAN_INLINE void finish(int64_t t, int64_t rank, int64_t j, const Vec<T>* sums) {
    const int64_t row = order_.row[rank], at = rank * padded_ + j * L, out = row * p_.H + j * L;
    Forward<T> f = here(t, rank, j);
    if (Cell::has_c) f.c = load<Vec<T>>(c_.get() + at);
    if (Cell::second > 0) f.z = load<Vec<T>>(z_.get() + at);
    const Vec<T> h = Cell::template forward<T>(sums, f);
    prefetch(t, f.u);
    store_some(p_.y + row * p_.T * p_.H + t * p_.H + j * L, h, f.count);
    const bool ends = t + 1 == order_.length[rank];
    if (ends) {
      store_some(p_.h + out, h, f.count);
      if (Cell::has_c) store_some(p_.c + out, f.c, f.count);
      return;
    }
    const bool forget = p_.reset[row * p_.T + t + 1];
    store(h_[(t + 1) & 1].get() + at, forget ? Vec<T>{} : h);
    if (Cell::has_c) store(c_.get() + at, forget ? Vec<T>{} : f.c);
  }

  // The next step's inputs lie far apart: the hardware does not see them coming.
  ELMAN_INLINE void prefetch(int64_t t, const T* u) const {
    if (t + 1 < p_.T)
      for (int g = 0; g < Cell::gates; ++g) __builtin_prefetch(u + p_.u.time + g * p_.H);
  }

  GatedLoop<T> p_;
  bool relu_;
  Order order_;
  int64_t padded_;
  Division division_;
  Buffer<T> first_, second_, extra_, h_[2], c_, q_, z_, scratch_;
};

// ---- Backward ------------------------------------------------------------------------------------------------------

template <class Cell, class T>
class RunBack {
  static constexpr int L = lanes<T>, P = 2 * L;
  static constexpr int G = Cell::first + Cell::second;
  static constexpr int ready = Cell::second > 0 ? 1 : 0;  // gate 0 must wait for the second product's gradient

 public:
  RunBack(const GatedLoopBack<T>& loop, bool relu, int threads)
      : p_(loop),
        relu_(relu),
        order_(p_.B, p_.T, p_.lengths),
        padded_(padded_width<T>(p_.H)),
        wide_((p_.H + P - 1) / P * P),
        division_(order_, wide_ / P, p_.H * p_.H * G, threads) {
    if (Cell::first > 0) first_ = pack_back(p_.w, p_.H, wide_, 0, Cell::first);
    if (Cell::second > 0) second_ = pack_back(p_.w, p_.H, wide_, Cell::first, Cell::second);
    if (p_.extra) extra_ = padded_copy(p_.extra, p_.extra_size, p_.H, wide_);
    const int64_t size = p_.B * wide_, steps = p_.B * p_.T;
    advise(p_.gu, steps * Cell::gates * p_.H);
    advise(p_.before, steps * p_.H);
    if (Cell::side) advise(p_.side, steps * p_.H);
    dh_ = allocate<T>(size);
    for (auto& g : g_) {
      g = allocate<T>(size * std::max(G, 1));
      std::memset(g.get(), 0, size * std::max(G, 1) * sizeof(T));
    }
    if (Cell::has_c) dc_ = allocate<T>(size);
    if (Cell::second > 0) {
      D_ = allocate<T>(size);
      dq_ = allocate<T>(size);
    }
  }

  void operator()(int thread, int threads, Barrier& barrier) {
    division_.each(thread, threads, [&](Part part) {
      for (int64_t t = p_.T - 1; t >= 0; --t) {
        const int64_t end = std::min(part.end, order_.running[t]);
        if (end > part.first) step(t, {part.first, end, part.left, part.right}, barrier, threads);
      }
      for (int64_t rank = part.first; rank < part.end; ++rank) {
        begin(rank, part, p_.gh, dh_.get(), p_.gh0);
        if (Cell::has_c) begin(rank, part, p_.gc, dc_.get(), p_.gc0);
      }
    });
    for (int64_t rank = thread; rank < p_.B; rank += threads) pad(rank);
  }

  int threads() const { return division_.threads; }

 private:
  // Gradient of the state before the first step.
  void begin(int64_t rank, Part part, const T* last, const T* carried, T* to) {
    const int64_t row = order_.row[rank], left = part.left * P, count = std::min(part.right * P, p_.H) - left;
    if (count <= 0) return;
    T* out = to + row * p_.H + left;
    if (order_.length[rank] == 0) std::memcpy(out, last + row * p_.H + left, count * sizeof(T));
    else if (p_.reset[row * p_.T]) std::memset(out, 0, count * sizeof(T));
    else std::memcpy(out, carried + rank * wide_ + left, count * sizeof(T));
  }

  void pad(int64_t rank) {
    const int64_t at = order_.row[rank] * p_.T + order_.length[rank], count = p_.T - order_.length[rank];
    std::fill_n(p_.gu + at * Cell::gates * p_.H, count * Cell::gates * p_.H, T(0));
    std::fill_n(p_.before + at * p_.H, count * p_.H, T(0));
    if (Cell::side) std::fill_n(p_.side + at * p_.H, count * p_.H, T(0));
  }

  void step(int64_t t, Part part, Barrier& barrier, int threads) {
    T* g = g_[t & 1].get();
    const int64_t right = std::min(part.right * 2, (p_.H + L - 1) / L);
    for (int64_t rank = part.first; rank < part.end; ++rank)
      for (int64_t j = part.left * 2; j < right; ++j) gates(t, rank, j, g);
    if constexpr (G > 0) {
      if (!division_.by_rows) barrier.wait(threads);
      if constexpr (Cell::second > 0) {
        for (int64_t rank = part.first; rank < part.end; ++rank)
          std::memset(dq_.get() + rank * wide_ + part.left * P, 0, (part.right - part.left) * P * sizeof(T));
        product<Cell::second>(part, second_.get(), g + Cell::first * wide_, dq_.get());
        for (int64_t rank = part.first; rank < part.end; ++rank)
          for (int64_t j = part.left * 2; j < right; ++j) gates_after(t, rank, j, g);
        if (!division_.by_rows) barrier.wait(threads);
      }
      product<Cell::first>(part, first_.get(), g, dh_.get());
    }
  }

  // to += g W for the columns of the part
  template <int N>
  void product(Part part, const T* packed, const T* g, T* to) {
    each_blocks_for<2>(part.end - part.first, part.left, part.right, [&](auto C, int64_t j) {
      run_blocks<C, 2, T>(packed, j, part.first, part.end, g, G * wide_, N * wide_, nullptr,
                          to + part.first * wide_ + j * P, wide_);
    });
  }

  // What arrives from the step after: the gradient of the last state at a row's end, nothing across a reset.
  ELMAN_INLINE Vec<T> carried(int64_t t, int64_t rank, int64_t j, const T* last, const T* from) const {
    const int64_t row = order_.row[rank];
    if (t + 1 == order_.length[rank]) return load_some(last + row * p_.H + j * L, p_.H - j * L);
    if (p_.reset[row * p_.T + t + 1]) return Vec<T>{};
    return load<Vec<T>>(from + rank * wide_ + j * L);
  }

  ELMAN_INLINE Backward<T> here(int64_t t, int64_t rank, int64_t j) const {
    const int64_t row = order_.row[rank], count = p_.H - j * L;
    const T* y = p_.y + (row * p_.T + t) * p_.H + j * L;
    const bool fresh = p_.reset[row * p_.T + t];
    Backward<T> b;
    b.save = p_.saved + (order_.begin[t] + rank) * Cell::saves * padded_ + j * L;
    b.stride = padded_;
    b.relu = relu_;
    b.extra = p_.extra ? load<Vec<T>>(extra_.get() + j * L) : Vec<T>{};
    b.y = Cell::saves == 0 ? load_some(y, count) : Vec<T>{};
    b.h = fresh ? Vec<T>{} : load_some(t > 0 ? y - p_.H : p_.h0 + row * p_.H + j * L, count);
    if (Cell::has_c) {
      constexpr int last = Cell::saves - 1;
      if (fresh) b.c = Vec<T>{};
      else if (t == 0) b.c = load_some(p_.c0 + row * p_.H + j * L, count);
      else b.c = load<Vec<T>>(p_.saved + ((order_.begin[t - 1] + rank) * Cell::saves + last) * padded_ + j * L);
    }
    return b;
  }

  ELMAN_INLINE void gates(int64_t t, int64_t rank, int64_t j, T* g) {
    const int64_t row = order_.row[rank], count = p_.H - j * L, at = rank * wide_ + j * L;
    const T* gy = p_.gy.data + row * p_.gy.row + t * p_.gy.time + j * L;
    Backward<T> b = here(t, rank, j);
    b.D = load_some(gy, count) + carried(t, rank, j, p_.gh, dh_.get());
    if (Cell::has_c) b.dc = carried(t, rank, j, p_.gc, dc_.get());
    Cell::template backward<T>(b);
    prefetch(t, b.save, gy, p_.y + (row * p_.T + t) * p_.H + j * L);
    const int64_t out = (row * p_.T + t) * p_.H + j * L;
    for (int i = ready; i < G; ++i) store(g + (rank * G + i) * wide_ + j * L, b.g[i]);
    for (int i = ready; i < Cell::gates; ++i)
      store_some(p_.gu + (row * p_.T + t) * Cell::gates * p_.H + i * p_.H + j * L, b.gu[i], count);
    store_some(p_.before + out, b.h, count);
    if (Cell::side) store_some(p_.side + out, b.side, count);
    store(dh_.get() + at, b.direct);
    if (Cell::has_c) store(dc_.get() + at, b.dc);
    if (Cell::second > 0) store(D_.get() + at, b.D);
  }

  // The gate in front of the second product, once that product's gradient is there.
  ELMAN_INLINE void gates_after(int64_t t, int64_t rank, int64_t j, T* g) {
    if constexpr (Cell::second > 0) {
      const int64_t row = order_.row[rank], at = rank * wide_ + j * L;
      Backward<T> b = here(t, rank, j);
      b.D = load<Vec<T>>(D_.get() + at);
      b.direct = load<Vec<T>>(dh_.get() + at);
      Cell::template backward<T>(b, load<Vec<T>>(dq_.get() + at));
      store(g + rank * G * wide_ + j * L, b.g[0]);
      store_some(p_.gu + (row * p_.T + t) * Cell::gates * p_.H + j * L, b.gu[0], p_.H - j * L);
      store(dh_.get() + at, b.direct);
    }
  }

  ELMAN_INLINE void prefetch(int64_t t, const T*, const T* gy, const T* y) const {
    if (t == 0) return;
    __builtin_prefetch(gy - p_.gy.time);
    if (t > 1) __builtin_prefetch(y - 2 * p_.H);
  }

  GatedLoopBack<T> p_;
  bool relu_;
  Order order_;
  int64_t padded_, wide_;
  Division division_;
  Buffer<T> first_, second_, extra_, dh_, dc_, g_[2], D_, dq_;
};

template <class R>
void start(R& run) {
  team(run.threads(), [&](int thread, int threads, Barrier& barrier) { run(thread, threads, barrier); });
}

}  // namespace

template <class T>
void gated(int kind, const GatedLoop<T>& loop, int threads) {
  each_cell(kind, [&](auto cell, bool relu) {
    Run<decltype(cell), T> run(loop, relu, threads);
    start(run);
  });
}

template <class T>
void gated_back(int kind, const GatedLoopBack<T>& loop, int threads) {
  each_cell(kind, [&](auto cell, bool relu) {
    RunBack<decltype(cell), T> run(loop, relu, threads);
    start(run);
  });
}

#define ELMAN_INSTANCE(T)                                                                                            \
  template Gated<T> gated<T>;                                                                                        \
  template GatedBack<T> gated_back<T>;
ELMAN_INSTANCE(float)
ELMAN_INSTANCE(double)

}  // namespace elman::ELMAN_NS
