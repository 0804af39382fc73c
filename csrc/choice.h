// A symbol by chance, from logits and a uniform number: what `Sampling.choose` does to many rows, and a stream as it writes.
// All in double and one row at a time, so that a row chooses the same wherever it stands.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "buffers.h"
#include "math.h"
#include "program.h"

namespace elman::ELMAN_NS {

// Before threads choose, of which none may throw.
inline void check_banned(const Choice& choice, int64_t V) {
  for (int64_t i = 0; i < choice.banned_count; ++i)
    if (choice.banned[i] < 0 || choice.banned[i] >= V) throw std::out_of_range("native stream: a banned symbol is unknown.");
}

// Of a choice that was checked.
class Chooser {
  static constexpr int L = lanes<double>;

 public:
  Chooser(const Choice& choice, int64_t V) : choice_(choice), V_(V), wide_((V + L - 1) / L * L), p_(allocate<double>(wide_)) {}

  // Of V logits; seen (V) are the symbols so far, and u is above 0 and below 1.
  template <class Real>
  int64_t operator()(const Real* logits, const bool* seen, double u) {
    for (int64_t v = 0; v < V_; ++v) p_[v] = double(logits[v]);
    std::fill(p_.get() + V_, p_.get() + wide_, -std::numeric_limits<double>::infinity());
    for (int64_t i = 0; i < choice_.banned_count; ++i) p_[choice_.banned[i]] = -std::numeric_limits<double>::infinity();
    if (choice_.penalty != 1) penalise(seen);
    if (choice_.temperature == 0) return most_probable();
    weigh();
    const bool some = choice_.top_k > 0 && choice_.top_k < V_;
    return some || choice_.top_p < 1 ? among_the_top(some ? choice_.top_k : V_, u) : place(V_, u);
  }

 private:
  // The first of the largest, or of what is not a number.
  int64_t most_probable() const {
    int64_t best = 0;
    for (int64_t v = 0; v < V_ && p_[best] == p_[best]; ++v)
      if (!(p_[v] <= p_[best])) best = v;
    return best;
  }

  void subtract(double x) {
    for (int64_t v = 0; v < wide_; v += L) store(p_.get() + v, load<Vec<double>>(p_.get() + v) - x);
  }

  // p becomes exp((p - the largest) / temperature).
  void weigh() {
    const double largest = p_[most_probable()], temperature = choice_.temperature;
    for (int64_t v = 0; v < wide_; v += L) {
      const Vec<double> x = (load<Vec<double>>(p_.get() + v) - largest) / temperature;
      store(p_.get() + v, exponential<double>(x));
    }
  }

  // p becomes log-probabilities, and those of the symbols seen smaller.
  void penalise(const bool* seen) {
    subtract(p_[most_probable()]);
    Vec<double> sum{};
    for (int64_t v = 0; v < wide_; v += L) sum += exponential<double>(load<Vec<double>>(p_.get() + v));
    subtract(std::log(sum_lanes<double>(sum)));
    for (int64_t v = 0; v < V_; ++v)
      if (seen[v]) p_[v] *= choice_.penalty;
  }

  // Where the running sums of `count` weights reach u times their end. Never a place without weight: u is above 0, and where the
  // product is rounded up to the end, the last weight reaches it.
  int64_t place(int64_t count, double u) {
    std::partial_sum(p_.get(), p_.get() + count, p_.get());
    return reached(count, u * p_[count - 1]);
  }
  int64_t reached(int64_t count, double least) const {
    for (int64_t i = 0; i < count; ++i)
      if (p_[i] >= least) return i;
    return 0;  // of what is not a number
  }

  // Among the k most probable ones, of equal ones the first, and of these the first that have top_p together.
  int64_t among_the_top(int64_t k, double u) {
    if (p_[most_probable()] != 1) return 0;  // not a number, or nothing to choose: nothing can be sorted
    order_.resize(V_);
    std::iota(order_.begin(), order_.end(), int64_t(0));
    const auto before = [this](int64_t a, int64_t b) { return p_[a] != p_[b] ? p_[a] > p_[b] : a < b; };
    if (k < V_) std::nth_element(order_.begin(), order_.begin() + k, order_.end(), before);
    std::sort(order_.begin(), order_.begin() + k, before);
    sorted_.resize(k);
    for (int64_t i = 0; i < k; ++i) sorted_[i] = p_[order_[i]];
    std::copy(sorted_.begin(), sorted_.end(), p_.get());
    std::partial_sum(p_.get(), p_.get() + k, p_.get());
    const double all = p_[k - 1];
    const double end = choice_.top_p < 1 ? p_[reached(k, choice_.top_p * all)] : all;  // the one that reaches top_p is in
    return order_[reached(k, u * end)];
  }

  const Choice choice_;
  const int64_t V_, wide_;
  Buffer<double> p_;
  std::vector<int64_t> order_;
  std::vector<double> sorted_;
};

}  // namespace elman::ELMAN_NS
