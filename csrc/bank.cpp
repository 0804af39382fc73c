// The scan of banks of complex numbers, one bank for each channel, forward and backward, without their (B, T, D, N) states in
// memory:
//
//   h[t,d,n] = a[d,n] h[t-1,d,n] + b[d,n] x[t,d]        y[t,d] = sum_n Re(c[d,n] h[t,d,n])
//
// A lane is a channel d, and a task is one block of lanes of one row; sums over n run upwards, so a row's bits depend on that
// row alone. The coefficients do not change in time: those of one n, and its state, stay in registers while time runs over a
// stretch of `every` steps. The backward pass starts from the state saved before each stretch, and computes the stretch again.
// A reset is a branch, never a coefficient of zero: zero times infinity would be NaN.
#include "channels.h"
#include "product.h"
#include "steps.h"

namespace elman::ELMAN_NS {
namespace {

// A block of lanes of one row. Coefficients and states are [n][real, imaginary][lane].
template <class T>
class Task {
 protected:
  static constexpr int L = lanes<T>, pair = 2 * L;

  const BankInputs<T>& in;
  const int64_t row, first, wide, N, length;  // `wide` channels from `first` on
  const bool* reset;
  const Buffer<T> a, b, c, h;
  const Buffer<T> x = allocate<T>(in.every * L), y = allocate<T>(in.every * L);  // of a stretch: [step][lane]

  Task(const BankInputs<T>& inputs, int64_t row, int64_t block)
      : in(inputs),
        row(row),
        first(block * L),
        wide(std::min<int64_t>(L, in.n.C - first)),
        N(in.N),
        length(in.lengths[row]),
        reset(in.reset + row * in.n.T),
        a(packed(in.a + first * 2 * N)),
        b(packed(in.b + first * 2 * N)),
        c(packed(in.c + first * 2 * N)),
        h(packed(in.h0 + state())) {}

  // x (wide, N, 2), channel by channel
  Buffer<T> packed(const T* x) const {
    auto to = allocate<T>(N * pair);
    pack_lanes(x, 2 * N, wide, 2 * N, to.get(), L);
    return to;
  }

  template <class U>
  void unpack(const U* from, U* x) const {
    for (int64_t d = 0; d < wide; ++d)
      for (int64_t i = 0; i < 2 * N; ++i) x[d * 2 * N + i] = from[i * L + d];
  }

  int64_t state() const { return (row * in.n.C + first) * 2 * N; }  // of the block, in a (B, D, N, 2) array
  int64_t at(int64_t t) const { return (row * in.n.T + t) * in.n.C + first; }

  // The state saved before step k * every, k = 1, 2, ..., with the lanes past the last channel.
  int64_t checkpoint(int64_t k) const {
    const int64_t all = (in.n.C + 15) / 16 * 16 * 2 * N, step = (all + in.every - 1) / in.every;
    return row * in.n.T * step + (k - 1) * all + first * 2 * N;
  }

  void fetch(const Rows<T>& from, int64_t begin, int64_t end, T* to) const {
    for (int64_t t = begin; t < end; ++t, to += L)
      store(to, load_some(from.data + row * from.row + t * from.time + first, wide));
  }

  void put(const T* from, int64_t begin, int64_t end, T* to) const {
    for (int64_t t = begin; t < end; ++t, from += L) store_some(to + at(t), load<Vec<T>>(from), wide);
  }

  // The steps [begin, end) of K numbers from n on. They add to y, or, where `path` is given, leave every state there:
  // [n][step][real, imaginary][lane].
  template <int K>
  ELMAN_INLINE void advance(int64_t n, int64_t begin, int64_t end, T* path) {
    Vec<T> ar[K], ai[K], br[K], bi[K], hr[K], hi[K];
    for (int k = 0; k < K; ++k) {
      const int64_t l = (n + k) * pair;
      ar[k] = load<Vec<T>>(a.get() + l), ai[k] = load<Vec<T>>(a.get() + l + L);
      br[k] = load<Vec<T>>(b.get() + l), bi[k] = load<Vec<T>>(b.get() + l + L);
      hr[k] = load<Vec<T>>(h.get() + l), hi[k] = load<Vec<T>>(h.get() + l + L);
    }
    for (int64_t t = begin; t < end; ++t) {
      const int64_t i = t - begin;
      const Vec<T> xt = load<Vec<T>>(x.get() + i * L);
      Vec<T> yt = load<Vec<T>>(y.get() + i * L);
      for (int k = 0; k < K; ++k) {
        Vec<T> real = br[k] * xt, imaginary = bi[k] * xt;
        if (!reset[t]) {
          real = fma(ar[k], hr[k], fma(-ai[k], hi[k], real));
          imaginary = fma(ar[k], hi[k], fma(ai[k], hr[k], imaginary));
        }
        hr[k] = real, hi[k] = imaginary;
        if (path) {
          T* to = path + ((n + k) * in.every + i) * pair;
          store(to, real), store(to + L, imaginary);
        } else {
          const T* read = c.get() + (n + k) * pair;
          yt = fma(load<Vec<T>>(read), real, yt);
          yt = fma(-load<Vec<T>>(read + L), imaginary, yt);
        }
      }
      store(y.get() + i * L, yt);
    }
    for (int k = 0; k < K; ++k) store(h.get() + (n + k) * pair, hr[k]), store(h.get() + (n + k) * pair + L, hi[k]);
  }

  void advance_all(int64_t begin, int64_t end, T* path) {
    int64_t n = 0;
    for (; n + 2 <= N; n += 2) advance<2>(n, begin, end, path);  // two at once: one would wait for itself
    for (; n < N; ++n) advance<1>(n, begin, end, path);
  }
};

template <class T>
class Forward : Task<T> {
  using Task<T>::in, Task<T>::length, Task<T>::h, Task<T>::x, Task<T>::y, Task<T>::L, Task<T>::pair, Task<T>::N;

 public:
  Forward(const BankInputs<T>& inputs, int64_t row, int64_t block) : Task<T>(inputs, row, block) {}

  void run(const BankOutputs<T>& out) {
    for (int64_t begin = 0; begin < length; begin += in.every) {
      const int64_t end = std::min(begin + in.every, length);
      if (out.saved && begin > 0) copy(h.get(), out.saved + this->checkpoint(begin / in.every), N * pair);
      this->fetch(in.x, begin, end, x.get());
      clear(y.get(), (end - begin) * L);
      this->advance_all(begin, end, nullptr);
      this->put(y.get(), begin, end, out.y);
    }
    for (int64_t t = length; t < in.n.T; ++t) clear(out.y + this->at(t), this->wide);
    this->unpack(h.get(), out.last + this->state());
  }
};

// With g[t] the gradient at h[t], as Torch defines it for complex numbers:
//
//   g[t] = gy[t] conj(c) + conj(a) g[t+1]
//   gx = sum_n Re(conj(b) g)      ga = sum_t g[t] conj(h[t-1])      gb = sum_t x g      gc = sum_t gy conj(h)
template <class T>
class Backward : Task<T> {
  using Task<T>::in, Task<T>::length, Task<T>::reset, Task<T>::a, Task<T>::b, Task<T>::c, Task<T>::h, Task<T>::x, Task<T>::y;
  using Task<T>::L, Task<T>::pair, Task<T>::N;

  const BankArriving<T>& from;
  const BankGradients<T>& to;
  const Buffer<T> h0, g;  // g: the gradient at the state before the step at hand
  const Buffer<T> before = allocate<T>(N * pair), path = allocate<T>(N * in.every * pair);  // states of a stretch
  const Buffer<T> gy = allocate<T>(in.every * L), gx = allocate<T>(in.every * L);
  const Buffer<double> ga = sums(), gb = sums(), gc = sums();  // over time: a long row would lose digits in a float

 public:
  Backward(const BankInputs<T>& inputs, const BankArriving<T>& from, const BankGradients<T>& to, int64_t row, int64_t block)
      : Task<T>(inputs, row, block),
        from(from),
        to(to),
        h0(this->packed(in.h0 + this->state())),
        g(this->packed(from.glast + this->state())) {}

  void run() {
    for (int64_t end = length, begin; end > 0; end = begin) {
      begin = (end - 1) / in.every * in.every;
      copy(begin == 0 ? h0.get() : from.saved + this->checkpoint(begin / in.every), before.get(), N * pair);
      copy(before.get(), h.get(), N * pair);
      this->fetch(in.x, begin, end, x.get());
      this->advance_all(begin, end, path.get());
      this->fetch(from.gy, begin, end, gy.get());
      clear(gx.get(), (end - begin) * L);
      for (int64_t n = 0; n < N; ++n) back(n, begin, end);
      this->put(gx.get(), begin, end, to.gx);
    }
    for (int64_t t = length; t < in.n.T; ++t) clear(to.gx + this->at(t), this->wide);
    this->unpack(ga.get(), to.ga + this->state());
    this->unpack(gb.get(), to.gb + this->state());
    this->unpack(gc.get(), to.gc + this->state());
    this->unpack(g.get(), to.gh0 + this->state());
  }

 private:
  Buffer<double> sums() const {
    auto to = allocate<double>(N * pair);
    clear(to.get(), N * pair);
    return to;
  }

  ELMAN_INLINE void back(int64_t n, int64_t begin, int64_t end) {
    const auto part = [n](const Buffer<T>& v, int which) { return load<Vec<T>>(v.get() + n * pair + which * L); };
    const Vec<T> ar = part(a, 0), ai = part(a, 1), br = part(b, 0), bi = part(b, 1), cr = part(c, 0), ci = part(c, 1);
    Vec<T> gr = part(g, 0), gi = part(g, 1);
    Vec<T> gar{}, gai{}, gbr{}, gbi{}, gcr{}, gci{};
    const T* states = path.get() + n * in.every * pair;
    for (int64_t t = end - 1; t >= begin; --t) {
      const int64_t i = t - begin;
      const T *now = states + i * pair, *then = i > 0 ? now - pair : before.get() + n * pair;
      const Vec<T> xt = load<Vec<T>>(x.get() + i * L), gyt = load<Vec<T>>(gy.get() + i * L);
      gcr = fma(gyt, load<Vec<T>>(now), gcr);
      gci = fma(-gyt, load<Vec<T>>(now + L), gci);
      gr = fma(gyt, cr, gr);
      gi = fma(-gyt, ci, gi);
      gbr = fma(xt, gr, gbr);
      gbi = fma(xt, gi, gbi);
      store(gx.get() + i * L, fma(bi, gi, fma(br, gr, load<Vec<T>>(gx.get() + i * L))));
      if (reset[t]) {
        gr = gi = Vec<T>{};
        continue;
      }
      const Vec<T> hr = load<Vec<T>>(then), hi = load<Vec<T>>(then + L);
      gar = fma(gi, hi, fma(gr, hr, gar));
      gai = fma(-gr, hi, fma(gi, hr, gai));
      const Vec<T> real = fma(ar, gr, ai * gi);
      gi = fma(ar, gi, -(ai * gr));
      gr = real;
    }
    store(g.get() + n * pair, gr), store(g.get() + n * pair + L, gi);
    add(ga, n, gar, gai), add(gb, n, gbr, gbi), add(gc, n, gcr, gci);
  }

  static void add(const Buffer<double>& sum, int64_t n, Vec<T> real, Vec<T> imaginary) {
    double* to = sum.get() + n * pair;
    for (int l = 0; l < L; ++l) to[l] += double(real[l]), to[L + l] += double(imaginary[l]);
  }
};

// f(row, block of lanes)
template <class T, class F>
void each_block(const BankInputs<T>& in, int threads, const F& f) {
  const int64_t blocks = (in.n.C + lanes<T> - 1) / lanes<T>;
  const int worth = threads_for(in.n.B * in.n.T * in.n.C * in.N, WorthAThread::elements, threads);
  parallel(worth, in.n.B * blocks, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i / blocks, i % blocks);
  });
}

}  // namespace

template <class T>
void bank_scan(const BankInputs<T>& in, const BankOutputs<T>& out, int threads) {
  each_block(in, threads, [&](int64_t row, int64_t block) { Forward<T>(in, row, block).run(out); });
}

template <class T>
void bank_scan_back(const BankInputs<T>& in, const BankArriving<T>& arriving, const BankGradients<T>& to, int threads) {
  each_block(in, threads, [&](int64_t row, int64_t block) { Backward<T>(in, arriving, to, row, block).run(); });
}

template <class T>
int append(Program<T>& program, const BankOperation<T>& o) {
  auto& steps = Steps<T>::of(program);
  const int64_t D = steps.width(o.x), N = o.N, size = steps.width(o.h);
  const int y = steps.slot(D), last = steps.slot(size);
  const int a = steps.constant(size, o.a), b = steps.constant(size, o.b), c = steps.constant(size, o.c);
  steps.each_row([=, x = o.x, h = o.h](Workspace<T>& w, int64_t row) {
    T* state = w.at(h, row);
    bank_scan<T>({{1, 1, D}, N, 1, {w.at(x, row), 0, 0}, w.at(a, 0), w.at(b, 0), w.at(c, 0), state, &one_step, &no_reset},
                 {w.at(y, row), w.at(last, row), nullptr}, 1);
    std::memcpy(state, w.at(last, row), size * sizeof(T));
  });
  steps.costs(8 * D * N);
  return y;
}

#define ELMAN_INSTANCE(T)            \
  template BankScan<T> bank_scan<T>; \
  template BankScanBack<T> bank_scan_back<T>;
ELMAN_INSTANCE(float)
ELMAN_INSTANCE(double)
ELMAN_APPEND(BankOperation)

}  // namespace elman::ELMAN_NS
