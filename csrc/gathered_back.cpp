// The gathered loop, backward: from the last level to the first. It leaves the gradients of every sum; what they are for the
// weights, products over all rows, is the caller's.
//
// A row adds to the gradients of the rows that it gathered from: a later level before an earlier one, in a level the first row
// first. That order is the group's own, so it is the same in every batch and on any number of threads.
#include "gathered.h"

namespace elman::ELMAN_NS {
namespace {

template <class Real>
class LoopBack {
  static constexpr int L = lanes<Real>;
  using Shape = GatherShape<Real>;
  using V = Vec<Real>;

 public:
  LoopBack(const GatheredInputs<Real>& inputs, const GatheredArriving<Real>& arriving, const GatheredGradients<Real>& gradients)
      : in_(inputs), from_(arriving), to_(gradients), s_(inputs), saves_(gathered_saves(inputs)) {
    const int64_t K = s_.P * s_.H;
    W_ = s_.pack_back(in_.w, 0, in_.first ? 3 : s_.G, K);
    if (in_.first) W_f_ = s_.pack_back(in_.w, 3, 1, K), edges_ = most_edges(in_);
    zeros_ = zeros<Real>(Shape::whole_pairs(K));
  }

  // to_.gh and to_.gc hold what arrives; what rows add to it comes there too.
  void operator()(const std::vector<GatherRange>& levels) const {
    const int64_t ldx = Shape::stride(s_.P * s_.H);
    const auto x = allocate<Real>(gather_rows * ldx), own = allocate<Real>(in_.first ? edges_ * ldx : 0);
    for (size_t l = levels.size(); l-- > 0;) {
      const auto rows = [&](int64_t n, int64_t end) {
        for (int64_t i = n; i < end; ++i) gates(i, l == 0);
        if (l == 0) return;
        if (in_.first) sums(n, end, x.get(), own.get(), ldx);
        else places(n, end, x.get(), ldx);
      };
      if (in_.first) each_edges(levels[l], in_.first, gather_rows, rows);
      else each_rows(levels[l], gather_rows, rows);
    }
  }

 private:
  Real* gsum(int64_t n) const { return to_.gsum + (n - in_.level[0]) * s_.G * s_.H; }

  // The gradients of a row's sums, and what its c leaves to the cells before.
  void gates(int64_t row, bool leaf) const {
    const int64_t H = s_.H;
    Real* g = gsum(row);
    if (!s_.F) {
      for (int64_t n = 0; n < H; n += L) {
        const V h = load_some(from_.h + row * H + n, H - n), D = load_some(to_.gh + row * H + n, H - n);
        store_some(g + n, V(D * (Real(1) - h * h)), H - n);
      }
    } else {
      cell(row, leaf, g);
    }
    const int64_t m = in_.source ? in_.source[row] : row - in_.level[0];
    if (m >= 0) std::memcpy(to_.gu + m * s_.A * H, g, s_.A * H * sizeof(Real));
  }

  void cell(int64_t row, bool leaf, Real* to) const {
    const int64_t H = s_.H;
    const Real* save = from_.saved + (row - in_.level[0]) * saves_ * H;
    for (int64_t n = 0; n < H; n += L) {
      const int64_t some = H - n;
      const auto saved = [&](int64_t i) { return load_some(save + i * H + n, some); };
      const V i = saved(0), g = saved(1), o = saved(2), t = saved(in_.first ? 3 : 3 + s_.F);
      const V D = load_some(to_.gh + row * H + n, some);
      const V dc = fma(D * o, Real(1) - t * t, load_some(to_.gc + row * H + n, some));
      store_some(to + n, V(dc * g * slope(i)), some);
      store_some(to + H + n, V(dc * i * (Real(1) - g * g)), some);
      store_some(to + 2 * H + n, V(D * t * slope(o)), some);
      if (in_.first) {
        V sum{};
        for (int64_t e = in_.first[row]; e < in_.first[row + 1]; ++e) {
          const V gf = forget(in_.before[e], n, dc, load_some(from_.forgets + e * H + n, some));
          store_some(to_.gforgets + e * H + n, gf, some);
          sum = sum + gf;
        }
        store_some(to + 3 * H + n, sum, some);
      } else {
        for (int64_t p = 0; p < s_.F; ++p) {
          const int64_t before = leaf ? -1 : in_.before[row * s_.P + p];
          store_some(to + (3 + p) * H + n, before < 0 ? V{} : forget(before, n, dc, saved(3 + p)), some);
        }
      }
    }
  }

  static ELMAN_INLINE V slope(V s) { return s * (Real(1) - s); }

  // Through f * c of the row `before`: the gradient of the sum of f.
  ELMAN_INLINE V forget(int64_t before, int64_t n, V dc, V f) const {
    const int64_t some = s_.H - n;
    Real* gc = to_.gc + before * s_.H + n;
    store_some(gc, fma(dc, f, load_some(gc, some)), some);
    return dc * load_some(from_.c + before * s_.H + n, some) * slope(f);
  }

  void add(const Real* g, int64_t to) const {
    Real* sum = to_.gh + to * s_.H;
    for (int64_t n = 0; n < s_.H; ++n) sum[n] += g[n];
  }

  // x (rows, columns) = g (rows, count * H) times the packed gates
  void product(const Buffer<Real>& packed, int64_t rows, const Real* g, int64_t ldg, int64_t count, Real* x,
               int64_t ldx) const {
    const Start<Real> zero{zeros_.get(), 0};
    run_panels<2, Real>(packed.get(), 0, Shape::whole_pairs(s_.P * s_.H) / Shape::pair, rows, g, ldg, count * s_.H, &zero, x,
                        ldx);
  }

  void places(int64_t first, int64_t end, Real* x, int64_t ldx) const {
    product(W_, end - first, gsum(first), s_.G * s_.H, s_.G, x, ldx);
    for (int64_t n = first; n < end; ++n)
      for (int64_t p = 0; p < s_.P; ++p)
        if (const int64_t before = in_.before[n * s_.P + p]; before >= 0) add(x + (n - first) * ldx + p * s_.H, before);
  }

  void sums(int64_t first, int64_t end, Real* x, Real* own, int64_t ldx) const {
    const int64_t edge = in_.first[first];
    product(W_, end - first, gsum(first), s_.G * s_.H, 3, x, ldx);
    product(W_f_, in_.first[end] - edge, to_.gforgets + edge * s_.H, s_.H, 1, own, ldx);
    for (int64_t n = first; n < end; ++n)
      for (int64_t e = in_.first[n]; e < in_.first[n + 1]; ++e) {
        add(x + (n - first) * ldx, in_.before[e]);
        add(own + (e - edge) * ldx, in_.before[e]);
      }
  }

  GatheredInputs<Real> in_;
  GatheredArriving<Real> from_;
  GatheredGradients<Real> to_;
  Shape s_;
  int64_t saves_, edges_ = 0;
  Buffer<Real> W_, W_f_, zeros_;
};

}  // namespace

template <class Real>
void gathered_back(const GatheredInputs<Real>& inputs, const GatheredArriving<Real>& arriving,
                   const GatheredGradients<Real>& gradients, int threads) {
  const LoopBack<Real> loop(inputs, arriving, gradients);
  const GatherParts parts(inputs, threads);
  parallel(threads, parts.count(), [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) loop(parts.levels(i));
  });
}

template GatheredBack<float> gathered_back<float>;
template GatheredBack<double> gathered_back<double>;

}  // namespace elman::ELMAN_NS
