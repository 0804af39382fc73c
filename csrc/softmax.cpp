// log P(symbol) under a softmax of products, and its gradients: without the logits, but for those of some rows.
//
//   l[m][v] = b[v] + sum over k of h[m][k] w[v][k]       log_prob[m] = l[m][symbol] - log(sum over v of e^l[m][v])
//   q[m][v] = g[m] ((v is the symbol) - e^l[m][v] / sum),  gh = q w,  gw = q^T h,  gb = sum over m of q
//
// Rows of h lie in lanes, so that whatever is summed or compared over symbols stays in its lane. Symbols are taken a chunk at a
// time: of each one there are its largest logit and the sum of e^(l - largest), which are put together in the order of the chunks.
// For the gradients e^(l - largest) of some rows is kept (`kept_bytes`), and becomes q. So there are three products, and the
// weights are read twice for so many rows. The sum over symbols in gh is made of as many parts as there are, not of threads.
#include <limits>

#include "blocks.h"
#include "kernels.h"
#include "math.h"
#include "parallel.h"

namespace elman::ELMAN_NS {
namespace {

constexpr int64_t chunk = 240;           // symbols, whose weights are half of an L2 cache if they are 512 wide
constexpr int64_t kept_bytes = 1 << 26;  // of e^l
constexpr int64_t most_rows = 256;       // that are computed together
constexpr int64_t parts = 16;            // of the symbols, each with a sum of its own
constexpr int64_t few_chunks = 8;        // fewer are not divided among threads: the rows are
constexpr int64_t groups = 8;            // of the rows, then

template <class Real>
struct Gradients {
  const Real* g;
  Real *gh, *gw, *gb;
};

// Some rows after the others, at most `capacity` at a time.
template <class Real>
class SoftmaxRows {
  using V = Vec<Real>;
  static constexpr int64_t L = lanes<Real>, P = 2 * L;

 public:
  SoftmaxRows(const SoftmaxInputs<Real>& in, bool back, int64_t rows)
      : in_(in),
        back_(back),
        capacity_(capacity(in, rows)),
        chunks_((in.V + chunk - 1) / chunk),
        by_rows_(allocate<Real>(capacity_ * in.K)),
        top_(allocate<Real>(chunks_ * capacity_)),
        sum_(allocate<Real>(chunks_ * capacity_)),
        at_(allocate<Real>(capacity_)),
        g_(zeros<Real>(capacity_)) {
    if (!back) return;
    by_columns_ = zeros<Real>(columns() * capacity_ * P);
    kept_ = allocate<Real>(capacity_ * in.V);
    gh_ = allocate<Real>(parts * in.K * capacity_);
  }

  // Rows [first, end); gw and gb begin with them if `fresh`, and are added to else.
  void run(int64_t first, int64_t end, Real* log_prob, const Gradients<Real>& to, bool fresh, int threads) {
    for (; first < end; first += capacity_, fresh = false) {
      count_ = std::min(capacity_, end - first);
      panels_ = (count_ + P - 1) / P;
      symbols_ = in_.symbols + first;
      if (back_) {
        std::memset(g_.get(), 0, capacity_ * sizeof(Real));
        std::memcpy(g_.get(), to.g + first, count_ * sizeof(Real));
      }
      pack(in_.h + first * in_.K);
      parallel(threads, chunks_, [&](int64_t begin, int64_t stop) {
        const auto local = back_ ? Buffer<Real>() : allocate<Real>(chunk * P);
        for (int64_t c = begin; c < stop; ++c)
          for (int64_t p = 0; p < panels_; ++p) exponentials(c, p, back_ ? kept(p, c * chunk) : local.get());
      });
      finish(log_prob + first);
      if (back_) gradients(to, first, fresh, threads);
    }
  }

 private:
  static int64_t capacity(const SoftmaxInputs<Real>& in, int64_t rows) {
    const int64_t fit = kept_bytes / int64_t(sizeof(Real)) / std::max<int64_t>(in.V, 1);
    return (std::clamp<int64_t>(std::min(fit, rows), 1, most_rows) + P - 1) / P * P;
  }

  int64_t columns() const { return (in_.K + P - 1) / P; }
  int64_t symbols_in(int64_t c) const { return std::min(chunk, in_.V - c * chunk); }
  Real* kept(int64_t panel, int64_t v) { return kept_.get() + (panel * in_.V + v) * P; }  // [panel][v][2][L]

  // h as [panel of rows][k][2][L]; for gw also as [panel of columns][row][2][L], zero in rows that do not count: what is not finite
  // there would make NaN of a zero.
  void pack(const Real* h) {
    const int64_t K = in_.K;
    for (int64_t m = 0; m < panels_ * P; m += L)
      pack_lanes(h + m * K, K, std::clamp<int64_t>(count_ - m, 0, L), K, by_rows_.get() + m / P * P * K + m % P, P);
    for (int64_t j = 0; j < columns() && back_; ++j)
      for (int64_t m = 0; m < panels_ * P; ++m) {
        Real* to = by_columns_.get() + (j * capacity_ + m) * P;
        if (g_[m] != 0) std::memcpy(to, h + m * K + j * P, std::min(P, K - j * P) * sizeof(Real));
        else std::memset(to, 0, P * sizeof(Real));
      }
  }

  // f(row, its lane) for every row of a panel whose symbol is in the chunk.
  template <class F>
  void each_symbol(int64_t c, int64_t panel, const F& f) const {
    for (int64_t m = panel * P; m < std::min(panel * P + P, count_); ++m)
      if (symbols_[m] >= c * chunk && symbols_[m] < c * chunk + chunk) f(m, (symbols_[m] - c * chunk) * P + m % P);
  }

  // e^(l - largest) of a chunk, [v][2][L], and what is to be known of it.
  void exponentials(int64_t c, int64_t panel, Real* l) {
    const int64_t first = c * chunk, n = symbols_in(c);
    for (int64_t v = 0; v < n; ++v)
      for (int g = 0; g < 2; ++g) store(l + v * P + g * L, in_.b ? splat(in_.b[first + v]) : V{});
    run_blocks<1, 2, Real, Real>({by_rows_.get()}, panel, first, first + n, in_.w, in_.K, in_.K, nullptr, l, P);
    each_symbol(c, panel, [&](int64_t m, int64_t i) { at_[m] = l[i]; });
    constexpr Real infinity = std::numeric_limits<Real>::infinity();
    for (int g = 0; g < 2; ++g) {
      V top = splat(-infinity), sum{};
      for (int64_t v = 0; v < n; ++v) {
        const V x = load<V>(l + v * P + g * L);
        top = x > top ? x : top;
      }
      const V shift = top == -infinity ? V{} : top;  // where nothing is possible, infinities would make NaN
      for (int64_t v = 0; v < n; ++v) {
        const V e = decay<Real>(load<V>(l + v * P + g * L) - shift);
        store(l + v * P + g * L, e);
        sum += e;
      }
      store(top_.get() + c * capacity_ + panel * P + g * L, top);
      store(sum_.get() + c * capacity_ + panel * P + g * L, sum);
    }
  }

  // The chunks together. top_ becomes what e^(l - largest) of each is multiplied with to be q.
  void finish(Real* log_prob) {
    for (int64_t m = 0; m < panels_ * P; m += L) {
      V top = splat(-std::numeric_limits<Real>::infinity()), sum{};
      for (int64_t c = 0; c < chunks_; ++c) {
        const V x = load<V>(top_.get() + c * capacity_ + m);
        top = x > top ? x : top;
      }
      for (int64_t c = 0; c < chunks_; ++c) sum = fma(load<V>(sum_.get() + c * capacity_ + m), scale(c, m, top), sum);
      store_some(log_prob + m, V(load<V>(at_.get() + m) - top - logarithm<Real>(sum)), std::max<int64_t>(count_ - m, 0));
      const V factor = -load<V>(g_.get() + m) / sum;
      for (int64_t c = 0; c < chunks_ && back_; ++c) store(top_.get() + c * capacity_ + m, V(factor * scale(c, m, top)));
    }
  }
  V scale(int64_t c, int64_t m, V top) const { return decay<Real>(load<V>(top_.get() + c * capacity_ + m) - top); }

  void gradients(const Gradients<Real>& to, int64_t first, bool fresh, int threads) {
    const int64_t K = in_.K, used = std::min(parts, chunks_), size = K * capacity_;
    parallel(threads, used, [&](int64_t begin, int64_t end) {
      const auto packed = allocate<Real>(chunk * K);
      for (int64_t part = begin; part < end; ++part) {
        Real* gh = gh_.get() + part * size;
        std::memset(gh, 0, size * sizeof(Real));
        for (int64_t c = chunks_ * part / used; c < chunks_ * (part + 1) / used; ++c) add_chunk(c, to, fresh, packed.get(), gh);
      }
    });
    parallel(threads, K, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        Real* sum = gh_.get() + k * capacity_;
        for (int64_t part = 1; part < used; ++part)
          for (int64_t m = 0; m < count_; ++m) sum[m] += sum[part * size + m];
        for (int64_t m = 0; m < count_; ++m) to.gh[(first + m) * K + k] = sum[m];
      }
    });
  }

  void add_chunk(int64_t c, const Gradients<Real>& to, bool fresh, Real* packed, Real* gh) {
    const int64_t K = in_.K, first = c * chunk, n = symbols_in(c);
    for (int64_t p = 0; p < panels_; ++p) differences(c, p, kept(p, first));
    if (to.gb) add_bias(first, n, fresh, to.gb);
    pack_outer(n, in_.w + first * K, K, 0, K, packed);
    add_outer(n, packed, 0, K, kept(0, first), in_.V, panels_ * P, gh, capacity_);
    for (int64_t j = 0; j < columns(); ++j)
      row_tiles<rows_by_two>(first, first + n, [&](auto R, int64_t v) { add_weights<R>(v, j, fresh, to.gw + v * K + j * P); });
  }

  // q of e^(l - largest). A row that does not count has no say, whatever it is.
  void differences(int64_t c, int64_t panel, Real* e) {
    for (int g = 0; g < 2; ++g) {
      const int64_t m = panel * P + g * L;
      const V factor = load<V>(top_.get() + c * capacity_ + m), arriving = load<V>(g_.get() + m);
      for (int64_t v = 0; v < symbols_in(c); ++v) {
        Real* at = e + v * P + g * L;
        store(at, V(arriving == Real(0) ? V{} : load<V>(at) * factor));
      }
    }
    each_symbol(c, panel, [&](int64_t m, int64_t i) { e[i] += g_[m]; });
  }

  void add_bias(int64_t first, int64_t n, bool fresh, Real* gb) {
    for (int64_t v = first; v < first + n; ++v) {
      V sum{};
      for (int64_t p = 0; p < panels_; ++p) sum += load<V>(kept(p, v)) + load<V>(kept(p, v) + L);
      gb[v] = (fresh ? Real(0) : gb[v]) + sum_lanes<Real>(sum);
    }
  }

  // Panel j of the columns of gw for R symbols from v on.
  template <int R>
  __attribute__((noinline)) void add_weights(int64_t v, int64_t j, bool fresh, Real* gw) {
    const int64_t K = in_.K;
    V acc[R][2];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int g = 0; g < 2; ++g)
        acc[r][g] = fresh ? V{} : load_some(gw + r * K + g * L, std::max<int64_t>(K - j * P - g * L, 0));
    for (int64_t p = 0; p < panels_; ++p)
      tile<R, 1, 2>(acc, by_columns_.get() + (j * capacity_ + p * P) * P, 0, kept(p, v), P, P);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int g = 0; g < 2; ++g) store_some(gw + r * K + g * L, acc[r][g], std::max<int64_t>(K - j * P - g * L, 0));
  }

  const SoftmaxInputs<Real>& in_;
  const bool back_;
  const int64_t capacity_, chunks_;
  const Buffer<Real> by_rows_, top_, sum_, at_, g_;  // top and sum [chunk][row]
  Buffer<Real> by_columns_, kept_, gh_;              // gh [part][k][row]
  int64_t count_ = 0, panels_ = 0;
  const int64_t* symbols_ = nullptr;
};

template <class Real>
void clear(const SoftmaxInputs<Real>& in, const Gradients<Real>& to) {
  std::memset(to.gw, 0, in.V * in.K * sizeof(Real));
  if (to.gb) std::memset(to.gb, 0, in.V * sizeof(Real));
}

// Few symbols: groups of rows, each with sums of its own.
template <class Real>
void by_groups(const SoftmaxInputs<Real>& in, Real* log_prob, const Gradients<Real>& to, int threads) {
  const int64_t size = in.V * in.K, each = (in.M + groups - 1) / groups;
  const bool back = to.gw;
  const auto gw = allocate<Real>(back ? groups * size : 0), gb = allocate<Real>(back ? groups * in.V : 0);
  parallel(threads, groups, [&](int64_t begin, int64_t end) {
    SoftmaxRows<Real> rows(in, back, each);
    for (int64_t i = begin; i < end; ++i) {
      const Gradients<Real> own{to.g, to.gh, gw.get() + i * size, to.gb ? gb.get() + i * in.V : nullptr};
      if (back && i * each >= in.M) clear(in, own);
      rows.run(i * each, std::min((i + 1) * each, in.M), log_prob, own, true, 1);
    }
  });
  const auto add_up = [&](int64_t n, const Real* from, Real* sum) {
    std::memcpy(sum, from, n * sizeof(Real));
    for (int64_t i = 1; i < groups; ++i)
      for (int64_t k = 0; k < n; ++k) sum[k] += from[i * n + k];
  };
  if (back) add_up(size, gw.get(), to.gw);
  if (back && to.gb) add_up(in.V, gb.get(), to.gb);
}

template <class Real>
void run(const SoftmaxInputs<Real>& in, Real* log_prob, const Gradients<Real>& to, int threads) {
  threads = threads_for(in.M * in.V * in.K, WorthAThread::multiply_adds, threads);
  if (in.M == 0 && to.gw) clear(in, to);
  if (in.V < few_chunks * chunk) return by_groups(in, log_prob, to, threads);
  if (to.gw) prefer_huge_pages(to.gw, in.V * in.K * sizeof(Real));
  SoftmaxRows<Real>(in, to.gw, in.M).run(0, in.M, log_prob, to, true, threads);
}

}  // namespace

template <class Real>
void softmax_log_prob(const SoftmaxInputs<Real>& in, const SoftmaxOutputs<Real>& out, int threads) {
  run(in, out.log_prob, Gradients<Real>{}, threads);
}

template <class Real>
void softmax_log_prob_back(const SoftmaxInputs<Real>& in, const SoftmaxArriving<Real>& arriving,
                           const SoftmaxGradients<Real>& to, int threads) {
  run(in, to.log_prob, Gradients<Real>{arriving.g, to.gh, to.gw, to.gb}, threads);
}

template Softmax<float> softmax_log_prob<float>;
template Softmax<double> softmax_log_prob<double>;
template SoftmaxBack<float> softmax_log_prob_back<float>;
template SoftmaxBack<double> softmax_log_prob_back<double>;

}  // namespace elman::ELMAN_NS
