// A step of EM of a hidden Markov model with Gaussian emissions: densities, what is expected, and the parameters that make it most
// probable, in one call.
//
//   x[t][k] = log Normal(o[t]; mean k, covariance k)
//   n = sum_t posterior,  mean' = sum_t posterior o / n,  scatter = sum_t posterior (o - mean')(o - mean')^T
//
// Sums are taken about the mean before the step, and moved: one pass over the data. Where that would lose digits, because the mean
// moves by far more than the data scatter, they are taken once more about the new one.
// Densities and sums have steps in their lanes, the chain has states (hmm_few.h, or hmm_expected.cpp for more of them). Rows are summed in
// groups, as many whatever the threads, and the groups in order.
#include <algorithm>
#include <vector>

#include "hmm_few.h"

namespace elman::ELMAN_NS {
template <class Real> HmmExpected<Real> hmm_expected;

namespace {

constexpr int64_t large = 1 << 19;  // bytes of a group's sums: half of an L2 cache
constexpr int64_t most = 1 << 26;   // bytes of all groups, of which there are at least four
template <class Real> constexpr Real log_two_pi = Real(1.8378770664093454836);

// from (count, columns) -> to (columns, chunk), zero past count.
template <class Real>
void transpose(const Real* from, int64_t count, int64_t columns, Real* to) {
  for (int64_t c = 0; c < columns; ++c, to += chunk) {
    for (int64_t t = 0; t < count; ++t) to[t] = from[t * columns + c];
    std::fill(to + count, to + chunk, Real(0));
  }
}

// And back.
template <class Real>
void transpose_back(const Real* from, int64_t count, int64_t columns, Real* to) {
  for (int64_t c = 0; c < columns; ++c, from += chunk)
    for (int64_t t = 0; t < count; ++t) to[t * columns + c] = from[t];
}

// Log densities of K Gaussians.
template <class Real>
class Densities {
 public:
  explicit Densities(const GaussianInputs<Real>& in)
      : in_(in), inverse_(allocate<Real>((in.G ? in.G : in.K) * in.D)), constant_(allocate<Real>(in.K)) {
    const int64_t K = in.K, D = in.D, G = in.G;
    for (int64_t i = 0; i < (G ? G : K) * D; ++i)
      inverse_[i] = G ? Real(1) / in.spread[i * D + i % D] : Real(1) / std::sqrt(in.spread[i]);
    for (int64_t k = 0; k < K; ++k) {
      Real logs = 0;
      for (int64_t d = 0; d < D; ++d) logs += std::log(inverse_[first(k) + d]);
      constant_[k] = logs - Real(0.5) * D * log_two_pi<Real>;
    }
  }

  // x (K, chunk) of ot (D, chunk); z has D vectors of room.
  void operator()(const Real* ot, int64_t count, Real* x, Real* z) const {
    for (int64_t k = 0; k < in_.K; ++k)
      for (int64_t t = 0; t < count; t += lanes<Real>)
        store(x + k * chunk + t, fma(squares(ot + t, k, z), splat<Real>(Real(-0.5)), splat<Real>(constant_[k])));
  }

 private:
  int64_t first(int64_t k) const { return (in_.G ? k * in_.G / in_.K : k) * in_.D; }

  // |z|^2 of one vector of steps, z = L^-1 (o - mean). Differences first: squares expanded into products lose digits where means
  // are far from zero.
  ELMAN_INLINE Vec<Real> squares(const Real* ot, int64_t k, Real* z) const {
    const int64_t D = in_.D;
    const Real *mean = in_.mean + k * D, *inverse = inverse_.get() + first(k), *factor = in_.spread + first(k) * D;
    Vec<Real> sum{};
    for (int64_t i = 0; i < D; ++i) {
      Vec<Real> zi = load<Vec<Real>>(ot + i * chunk) - mean[i];
      for (int64_t j = 0; j < i && in_.G; ++j)
        zi = fma(splat<Real>(-factor[i * D + j]), load<Vec<Real>>(z + j * lanes<Real>), zi);
      zi *= inverse[i];
      if (in_.G) store(z + i * lanes<Real>, zi);
      sum = fma(zi, zi, sum);
    }
    return sum;
  }

  const GaussianInputs<Real>& in_;
  Buffer<Real> inverse_, constant_;
};

// What is summed over steps. Of the observations, about a centre: for each state, | weight | D sums | scatter |. Each sum is a
// vector, a lane for every so many steps; of large ones, whose vectors would leave the caches at every chunk, a number.
template <class Real>
struct Sums {
  int64_t D, state, each;  // sums of a state, numbers of a sum
  double log_likelihood = 0;
  Buffer<Real> begins, counts, all;

  Sums(const GaussianInputs<Real>& in, Width<Real> w)
      : D(in.D),
        state(1 + D + (in.G ? D * (D + 1) / 2 : D)),
        each(in.K * state * vector_bytes > large ? 1 : lanes<Real>),
        begins(zeros<Real>(in.K)),
        counts(zeros<Real>(w.rows * w.padded)),
        all(zeros<Real>(in.K * state * each)) {}

  int64_t bytes(int64_t K) const { return K * state * each * int64_t(sizeof(Real)); }
  Real* of(int64_t k, int64_t i) const { return all.get() + (k * state + i) * each; }
  Real value(int64_t k, int64_t i) const { return each == 1 ? *of(k, i) : sum_lanes<Real>(load<Vec<Real>>(of(k, i))); }

  void add(const Sums& other, int64_t K, Width<Real> w) {
    log_likelihood += other.log_likelihood;
    for (int64_t k = 0; k < K; ++k) begins[k] += other.begins[k];
    for (int64_t i = 0; i < w.rows * w.padded; ++i) counts[i] += other.counts[i];
    for (int64_t i = 0; i < K * state * each; ++i) all[i] += other.all[i];
  }

  // A chunk of observations ot (D, chunk) of weights gt (K, chunk); y is as large as ot.
  void observe(const Real* ot, const Real* gt, int64_t count, int64_t K, bool dense, const Real* centre, Real* y) {
    for (int64_t k = 0; k < K; ++k, gt += chunk) {
      Vec<Real> weight = begin(of(k, 0));
      for (int64_t t = 0; t < count; t += lanes<Real>) weight += load<Vec<Real>>(gt + t);
      end(weight, of(k, 0));
      for (int64_t d = 0; d < D; ++d) {
        for (int64_t t = 0; t < count; t += lanes<Real>)
          store(y + d * chunk + t, Vec<Real>(load<Vec<Real>>(ot + d * chunk + t) - centre[k * D + d]));
        if (!dense) add_products(gt, y + d * chunk, y + d * chunk, count, of(k, 1 + d), of(k, 1 + D + d));
        for (int64_t e = 0; e <= d && dense; ++e)
          add_products(gt, y + d * chunk, y + e * chunk, count, e == d ? of(k, 1 + d) : nullptr,
                       of(k, 1 + D + d * (d + 1) / 2 + e));
      }
    }
  }

 private:
  // A sum that goes on, and its end for this chunk.
  ELMAN_INLINE Vec<Real> begin(const Real* p) const { return each == 1 ? Vec<Real>{} : load<Vec<Real>>(p); }
  ELMAN_INLINE void end(Vec<Real> sum, Real* p) const { each == 1 ? void(*p += sum_lanes<Real>(sum)) : store(p, sum); }

  // one += g a, unless that is null, two += g a b.
  ELMAN_INLINE void add_products(const Real* g, const Real* a, const Real* b, int64_t count, Real* one, Real* two) const {
    Vec<Real> sum = one ? begin(one) : Vec<Real>{}, products = begin(two);
    for (int64_t t = 0; t < count; t += lanes<Real>) {
      const Vec<Real> ga = load<Vec<Real>>(g + t) * load<Vec<Real>>(a + t);
      sum += ga;
      products = fma(ga, load<Vec<Real>>(b + t), products);
    }
    if (one) end(sum, one);
    end(products, two);
  }
};

// The expectation of rows, by one thread.
template <class Real>
class Expectation {
 public:
  Expectation(const GaussianInputs<Real>& in, const Densities<Real>& densities, Width<Real> w, const Real* a, const Real* at)
      : in_(in), densities_(densities), w_(w), a_(a), at_(at), forward_(w, true), backward_(w, true) {
    ot_ = allocate<Real>(chunk * in.D), xt_ = allocate<Real>(chunk * in.K), y_ = allocate<Real>(chunk * in.D);
  }

  // Rows first to end, added to `sums`.
  void rows(int64_t first, int64_t end, const Real* centre, Sums<Real>& sums) {
    if (!mixes(in_.transition, in_.K) || !in_registers(w_, [](auto, auto) {})) return many(first, end, centre, sums);
    for (int64_t b = first; b < end; ++b)
      if (!few(b, centre, sums)) many(b, b + 1, centre, sums);
  }

 private:
  const Real* o(int64_t b, int64_t t) const { return in_.o + (b * in_.T + t) * in_.D; }

  // f(t0, count) for the chunks of row b.
  template <class F>
  void chunks(int64_t b, const F& f) const {
    for (int64_t t0 = 0; t0 < in_.lengths[b]; t0 += chunk) f(t0, std::min(chunk, in_.lengths[b] - t0));
  }

  // xt (K, chunk) of a chunk.
  void density(int64_t b, int64_t t0, int64_t count) {
    transpose(o(b, t0), count, in_.D, ot_.get());
    densities_(ot_.get(), count, xt_.get(), y_.get());
  }

  // Likelihoods relative to the best of their step, in place; the sum of the logarithms of the best.
  double relative_to_best(int64_t count) {
    double total = 0;
    for (int64_t t = 0; t < count; t += lanes<Real>) {
      Real* x = xt_.get() + t;
      Vec<Real> best = load<Vec<Real>>(x);
      for (int64_t k = 1; k < in_.K; ++k) best = Best::join(load<Vec<Real>>(x + k * chunk), best);
      for (int64_t k = 0; k < in_.K; ++k) store(x + k * chunk, relative<Real>(load<Vec<Real>>(x + k * chunk) - best, Real(0)));
      if (count - t >= lanes<Real>) total += sum_lanes<Real>(best);
      else
        for (int64_t i = 0; i < count - t; ++i) total += best[i];
    }
    return total;
  }

  // Row b of few states; false if a number is too small or not one, and `sums` is as it was.
  bool few(int64_t b, const Real* centre, Sums<Real>& sums) {
    const int64_t K = in_.K, length = in_.lengths[b];
    if (length > longest_) l_ = allocate<Real>(length * K), posterior_ = allocate<Real>(length * K), longest_ = length;
    const FewRow<Real> row{w_, in_.start, a_, at_, in_.reset + b * in_.T, length, l_.get(), posterior_.get()};
    const auto likelihoods = [&](int64_t t0, int64_t count, FewPass<Real>&) {
      density(b, t0, count);
      const double total = relative_to_best(count);
      transpose_back(xt_.get(), count, K, l_.get() + t0 * K);
      return total;
    };
    if (!few_row(row, forward_, backward_, likelihoods, 1)) return false;
    for (const FewPass<Real>* pass : {&forward_, &backward_}) {
      sums.log_likelihood += pass->total;
      for (int64_t k = 0; k < K; ++k) sums.begins[k] += pass->begins[k];
      for (int64_t i = 0; i < w_.rows * w_.padded; ++i) sums.counts[i] += pass->counts[i];
    }
    observe(b, posterior_.get(), centre, sums);
    return true;
  }

  // Rows by their log densities.
  void many(int64_t first, int64_t end, const Real* centre, Sums<Real>& sums) {
    const int64_t B = end - first, T = in_.T, K = in_.K;
    const auto room = [](int64_t n) { return allocate<Real>(n); };
    const Buffer<Real> x = room(B * T * K), gx = room(B * T * K), gstart = room(K), ga = room(K * K);
    for (int64_t b = 0; b < B; ++b)
      chunks(first + b, [&](int64_t t0, int64_t count) {
        density(first + b, t0, count);
        transpose_back(xt_.get(), count, K, x.get() + (b * T + t0) * K);
      });
    Real total;
    hmm_expected<Real>({B, T, K, x.get(), in_.start, in_.transition, in_.lengths + first, in_.reset + first * T},
                       {&total, gx.get(), gstart.get(), ga.get()}, 1);
    sums.log_likelihood += total;
    for (int64_t k = 0; k < K; ++k) sums.begins[k] += in_.start[k] * gstart[k];
    for (int64_t i = 0; i < K * K; ++i) sums.counts[i / K * w_.padded + i % K] += ga[i];
    for (int64_t b = 0; b < B; ++b) observe(first + b, gx.get() + b * T * K, centre, sums);
  }

  // Row b with its posterior (length, K).
  void observe(int64_t b, const Real* posterior, const Real* centre, Sums<Real>& sums) {
    chunks(b, [&](int64_t t0, int64_t count) {
      transpose(o(b, t0), count, in_.D, ot_.get());
      transpose(posterior + t0 * in_.K, count, in_.K, xt_.get());
      sums.observe(ot_.get(), xt_.get(), count, in_.K, in_.G > 0, centre, y_.get());
    });
  }

  const GaussianInputs<Real>& in_;
  const Densities<Real>& densities_;
  const Width<Real> w_;
  const Real *a_, *at_;
  FewPass<Real> forward_, backward_;
  Buffer<Real> ot_, xt_, y_, l_, posterior_;  // the last two of a row, for rows up to the longest so far
  int64_t longest_ = 0;
};

// All rows, by groups.
template <class Real>
Sums<Real> expect(const GaussianInputs<Real>& in, const Real* centre, int threads) {
  const Width<Real> w(in.K);
  const Buffer<Real> a = pack(in.transition, in.K, 1, w, Real(0)), at = pack(in.transition, 1, in.K, w, Real(0));
  const Densities<Real> densities(in);
  std::vector<Sums<Real>> sums;
  sums.emplace_back(in, w);
  const int64_t groups = std::min(in.B, std::clamp<int64_t>(most / sums[0].bytes(in.K), 4, row_groups));
  for (int64_t i = 1; i < groups; ++i) sums.emplace_back(in, w);
  parallel(threads_for(in, threads), groups, [&](int64_t first, int64_t end) {
    Expectation<Real> expectation(in, densities, w, a.get(), at.get());
    for (int64_t i = first; i < end; ++i) expectation.rows(in.B * i / groups, in.B * (i + 1) / groups, centre, sums[i]);
  });
  for (int64_t i = 1; i < groups; ++i) sums[0].add(sums[i], in.K, w);
  return std::move(sums[0]);
}

// A row of probabilities from expected counts; what is excluded (p = 0) stays so, and all of it where nothing is counted.
template <class Real, class Count>
void maximise(const Real* p, const Real* prior, int64_t n, bool learns, const Count& count, Real* to) {
  Real total = 0;
  for (int64_t k = 0; k < n; ++k) total += to[k] = p[k] > 0 ? std::max(count(k) + (prior[k] - 1), Real(0)) : Real(0);
  for (int64_t k = 0; k < n; ++k) to[k] = learns && total > 0 ? to[k] / total : p[k];
}

// sum (prior - 1) log p, where what is excluded has no say.
template <class Real>
Real dirichlet(const Real* p, const Real* prior, int64_t n) {
  Real sum = 0;
  for (int64_t i = 0; i < n; ++i)
    if (p[i] > 0 && prior[i] != 1) sum += (prior[i] - 1) * std::log(p[i]);
  return sum;
}

// The part of a variance's numerator that is not scatter.
template <class Real>
Real numerator(const GaussianPriors<Real>& priors, int64_t i, Real mean) {
  const Real off = mean - priors.mean[i];
  return priors.variance[i] + Real(priors.mean_weight) * off * off;
}

template <class Real>
Real log_prior(const GaussianInputs<Real>& in, const GaussianPriors<Real>& priors) {
  const Real chain = dirichlet(in.start, priors.start, in.K) + dirichlet(in.transition, priors.transition, in.K * in.K);
  if (in.G) return chain;
  const Real weight = Real(std::max(priors.variance_weight - 1, 0.0));
  Real sum = 0;
  for (int64_t i = 0; i < in.K * in.D; ++i) {
    sum += numerator(priors, i, in.mean[i]) / in.spread[i];
    if (weight > 0) sum += weight * std::log(in.spread[i]);
  }
  return chain - Real(0.5) * sum;
}

// The means after the step, from sums about `centre` (K, D).
template <class Real>
void maximise_means(const GaussianInputs<Real>& in, const GaussianPriors<Real>& priors, const Sums<Real>& sums,
                    const Real* centre, Real* mean) {
  const Real weight = Real(priors.mean_weight);
  for (int64_t k = 0; k < in.K; ++k) {
    const Real n = sums.value(k, 0);
    const bool learns = priors.learns_mean && n > Real(priors.dead);
    for (int64_t i = k * in.D; i < (k + 1) * in.D; ++i) {
      const Real moved = sums.value(k, 1 + i % in.D) + (weight > 0 ? weight * (priors.mean[i] - centre[i]) : Real(0));
      mean[i] = learns ? centre[i] + moved / (n + weight) : in.mean[i];
    }
  }
}

// The scatter of dimensions d and e <= d of state k about `mean`, from sums about `centre`.
template <class Real>
Real scatter(const Sums<Real>& sums, bool dense, int64_t k, int64_t d, int64_t e, const Real* centre, const Real* mean) {
  const int64_t D = sums.D, at = 1 + D + (dense ? d * (d + 1) / 2 + e : d);
  const Real a = mean[k * D + d] - centre[k * D + d], b = mean[k * D + e] - centre[k * D + e];
  return sums.value(k, at) - a * sums.value(k, 1 + e) - b * sums.value(k, 1 + d) + a * b * sums.value(k, 0);
}

// Whether so little is left of a variance, once the mean has moved, that its digits are gone.
template <class Real>
bool cancels(const Sums<Real>& sums, bool dense, int64_t K, const Real* centre, const Real* mean) {
  for (int64_t k = 0; k < K; ++k)
    for (int64_t d = 0; d < sums.D; ++d)
      if (scatter(sums, dense, k, d, d, centre, mean) < Real(1e-4) * sums.value(k, 1 + sums.D + (dense ? d * (d + 3) / 2 : d)))
        return true;
  return false;
}

// Variances after the step; of dense covariances the scatter.
template <class Real>
void maximise_spread(const GaussianInputs<Real>& in, const GaussianPriors<Real>& priors, const Sums<Real>& sums,
                     const Real* centre, const GaussianOutputs<Real>& out) {
  const int64_t D = in.D;
  for (int64_t k = 0; k < in.K; ++k) {
    for (int64_t d = 0; d < D && in.G; ++d)
      for (int64_t e = 0; e <= d; ++e)
        out.spread[(k * D + d) * D + e] = out.spread[(k * D + e) * D + d] = scatter(sums, true, k, d, e, centre, out.mean);
    if (in.G) continue;
    const Real n = sums.value(k, 0), weight = Real(std::max(priors.variance_weight - 1, 0.0)) + n;
    const bool learns = priors.learns_variance && n > Real(priors.dead);
    Real whole = 0;
    for (int64_t i = k * D; i < (k + 1) * D; ++i) {
      out.spread[i] = numerator(priors, i, out.mean[i]) + scatter(sums, false, k, i % D, i % D, centre, out.mean);
      whole += out.spread[i];
    }
    for (int64_t i = k * D; i < (k + 1) * D; ++i)
      out.spread[i] = !learns ? in.spread[i] : in.spherical ? whole / (weight * D) : out.spread[i] / weight;
  }
}

}  // namespace

template <class Real>
void hmm_gaussian(const GaussianInputs<Real>& in, const GaussianPriors<Real>& priors, const GaussianOutputs<Real>& out,
                  int threads) {
  const int64_t K = in.K, padded = Width<Real>(K).padded;
  Sums<Real> sums = expect(in, in.mean, threads);
  out.objective[0] = Real(sums.log_likelihood), out.objective[1] = log_prior(in, priors);
  for (int64_t k = 0; k < K; ++k) out.weight[k] = sums.value(k, 0);
  maximise(in.start, priors.start, K, priors.learns_start, [&](int64_t k) { return sums.begins[k]; }, out.start);
  for (int64_t i = 0; i < K; ++i) {
    const Real* p = in.transition + i * K;
    const auto count = [&](int64_t j) { return p[j] * sums.counts[i * padded + j]; };
    maximise(p, priors.transition + i * K, K, priors.learns_transition, count, out.transition + i * K);
  }
  maximise_means(in, priors, sums, in.mean, out.mean);
  const bool again = priors.learns_variance && cancels(sums, in.G > 0, K, in.mean, out.mean);
  if (again) sums = expect(in, out.mean, threads);
  maximise_spread(in, priors, sums, again ? out.mean : in.mean, out);
  out.objective[2] = 0;
  for (int64_t i = 0; i < K * in.D && !in.G && priors.learns_variance; ++i)
    out.objective[2] += !(out.spread[i] > priors.least[i % in.D] && out.spread[i] < infinity<Real>);
}

template HmmGaussian<float> hmm_gaussian<float>;
template HmmGaussian<double> hmm_gaussian<double>;

}  // namespace elman::ELMAN_NS
