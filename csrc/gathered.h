// What the gathered loop (gathered.cpp) and its backward pass (gathered_back.cpp) share: sizes, packed weights, who computes what.
//
// Sums of a row are [gate][unit], a gate being `wide` numbers: H in whole vectors. Packed weights are panels of two vectors of them.
#pragma once

#include <algorithm>
#include <vector>

#include "blocks.h"
#include "kernels.h"
#include "math.h"
#include "parallel.h"

namespace elman::ELMAN_NS {

struct GatherRange {
  int64_t first, end;
};

// The rows of each level that each part computes: whole groups, which know nothing of one another, so that nobody waits.
class GatherParts {
 public:
  template <class Real>
  GatherParts(const GatheredInputs<Real>& in, int threads) {
    const int64_t G = in.F ? 3 + in.F : 1, rows = in.N - in.level[0];
    threads = threads_for(rows * G * in.P * in.H * in.H, WorthAThread::multiply_adds, threads);
    std::vector<int64_t> cut{0, 1};  // groups
    if (in.group && threads > 1) cut = cuts(in.level[0], in.N, in.group, threads);
    ranges_.resize(cut.size() - 1);
    for (int64_t l = 0; l < in.levels; ++l) {
      const int64_t first = in.level[l], end = in.level[l + 1];
      for (size_t i = 0; i + 1 < cut.size(); ++i) {
        const auto place = [&](int64_t group) { return std::lower_bound(in.group + first, in.group + end, group) - in.group; };
        ranges_[i].push_back(ranges_.size() == 1 ? GatherRange{first, end} : GatherRange{place(cut[i]), place(cut[i + 1])});
      }
    }
  }

  int64_t count() const { return int64_t(ranges_.size()); }
  const std::vector<GatherRange>& levels(int64_t part) const { return ranges_[part]; }

 private:
  // Groups [cut[i], cut[i + 1]) have about as many rows each.
  static std::vector<int64_t> cuts(int64_t first, int64_t N, const int64_t* group, int threads) {
    int64_t groups = 1;
    for (int64_t n = first; n < N; ++n) groups = std::max(groups, group[n] + 1);
    std::vector<int64_t> rows(groups, 0), cut{0};
    for (int64_t n = first; n < N; ++n) ++rows[group[n]];
    const int64_t parts = std::min<int64_t>(threads, groups);
    for (int64_t g = 0, sum = 0; g < groups; ++g) {
      if (int64_t(cut.size()) < parts && sum + rows[g] / 2 >= (N - first) * int64_t(cut.size()) / parts) cut.push_back(g);
      sum += rows[g];
    }
    cut.push_back(groups);
    return cut;
  }

  std::vector<std::vector<GatherRange>> ranges_;
};

// Rows that are taken at a time: what is gathered for them, and their sums, stay in the cache.
constexpr int64_t gather_rows = 96;

template <class Real>
struct GatherShape {
  static constexpr int L = lanes<Real>, pair = 2 * L;
  const int64_t H, P, F, G, A, wide;

  explicit GatherShape(const GatheredInputs<Real>& in)
      : H(in.H), P(in.P), F(in.F), G(F ? 3 + F : 1), A(in.A), wide((H + L - 1) / L * L) {}

  static int64_t whole_pairs(int64_t n) { return (n + pair - 1) / pair * pair; }
  // From one row of `n` numbers to the next: rows do not begin in the same cache set.
  static int64_t stride(int64_t n) { return whole_pairs(n) + 16; }

  // Gates [gate, gate + count) of w (G * H, K), for sums of rows: [pair of vectors][k][2][lanes].
  Buffer<Real> pack(const Real* w, int64_t gate, int64_t count, int64_t K) const {
    const int64_t each = wide / L, vectors = count * each;
    auto packed = allocate<Real>((vectors + 1) / 2 * K * pair);
    for (int64_t v = 0; v < (vectors + 1) / 2 * 2; ++v) {
      const int64_t g = gate + v / each, j = v % each;
      pack_lanes(w + (g * H + j * L) * K, K, v < vectors ? std::min<int64_t>(L, H - j * L) : 0, K,
                 packed.get() + v / 2 * K * pair + v % 2 * L, pair);
    }
    return packed;
  }

  // The same gates for products with gradients (rows, count * H): [pair of vectors of columns][k][2][lanes].
  Buffer<Real> pack_back(const Real* w, int64_t gate, int64_t count, int64_t columns) const {
    auto packed = zeros<Real>(whole_pairs(columns) * count * H);
    Real* to = packed.get();
    for (int64_t n = 0; n < columns; n += pair)
      for (int64_t k = 0; k < count * H; ++k, to += pair)
        std::memcpy(to, w + (gate * H + k) * columns + n, std::min<int64_t>(pair, columns - n) * sizeof(Real));
    return packed;
  }
};

// f(first, end) for pieces of [first, end) with at most `most` rows.
template <class F>
ELMAN_INLINE void each_rows(GatherRange range, int64_t most, const F& f) {
  for (int64_t n = range.first; n < range.end; n += most) f(n, std::min(n + most, range.end));
}

// f(first, end) for pieces of rows that gather at most `most` states together, or are one row.
template <class F>
ELMAN_INLINE void each_edges(GatherRange range, const int64_t* first, int64_t most, const F& f) {
  for (int64_t n = range.first, end; n < range.end; n = end) {
    for (end = n + 1; end < range.end && end - n < most && first[end + 1] - first[n] <= most;) ++end;
    f(n, end);
  }
}

// As many states as such a piece can gather.
template <class Real>
int64_t most_edges(const GatheredInputs<Real>& in) {
  int64_t most = gather_rows;
  for (int64_t n = in.level[0]; n < in.N; ++n) most = std::max(most, in.first[n + 1] - in.first[n]);
  return most;
}

// What the backward pass needs of a row: i, g, o, f of each place, tanh c; for child_sum i, g, o, tanh c, the sum of h.
template <class Real>
int64_t gathered_saves(const GatheredInputs<Real>& in) {
  return in.first ? 5 : in.F ? 4 + in.F : 0;
}

}  // namespace elman::ELMAN_NS
