// Which rows and units a thread computes, in which order, and how many steps it takes at a time.
//
// Rows are handled in the order of their lengths, longest first (their rank), so that the rows still running at a step
// are the first so many, and a row past its length costs nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "parallel.h"

namespace elman::ELMAN_NS {

struct Part {
  int64_t first, end;   // ranks
  int64_t left, right;  // blocks of units
  int number;           // among the parts that divide the ranks
};

// Rows by length; how many run at each step; where a step's rows begin in an array that has only the running ones, or all rows
// of the last `every` steps. Steps are counted as they are taken: the first one of a row that is read backwards is its last.
struct Order {
  std::vector<int64_t> row, length, running, begin;
  Order(int64_t B, int64_t T, const int64_t* lengths, const bool* reset, int64_t every, bool backwards)
      : row(B), length(B), running(T + 1, 0), begin(T + 1, 0), T_(T), reset_(reset), backwards_(backwards) {
    std::iota(row.begin(), row.end(), int64_t(0));
    std::stable_sort(row.begin(), row.end(), [&](int64_t a, int64_t b) { return lengths[a] > lengths[b]; });
    for (int64_t i = 0; i < B; ++i) length[i] = lengths[row[i]];
    for (int64_t t = 0, n = B; t < T; ++t) {
      while (n > 0 && length[n - 1] <= t) --n;
      running[t] = n;
      begin[t + 1] = every < T ? (t + 1) % every * B : begin[t] + n;
    }
  }

  // Where step t of a rank is in its row.
  int64_t time(int64_t rank, int64_t t) const { return backwards_ ? length[rank] - 1 - t : t; }

  // Where it is among all steps of the caller's arrays.
  int64_t place(int64_t rank, int64_t t) const { return row[rank] * T_ + time(rank, t); }

  // Whether an episode begins there: read backwards, a step begins an episode if the step read just before it has a reset.
  bool begins(int64_t rank, int64_t t) const {
    return backwards_ ? t > 0 && reset_[place(rank, t - 1)] : reset_[place(rank, t)];
  }

 private:
  int64_t T_;
  const bool* reset_;
  bool backwards_;
};

// Rows over threads where there are enough of them, cut where the sum of lengths is even; else units over threads.
struct Division {
  bool by_rows = true;
  int threads = 1;
  int64_t blocks;
  std::vector<int64_t> cut;

  Division(const Order& order, int64_t units, int64_t work, bool rows_only, int wanted) : blocks(units) {
    const int64_t B = int64_t(order.row.size());
    const int64_t total = std::accumulate(order.length.begin(), order.length.end(), int64_t(0));
    wanted = threads_for(total * work, WorthAThread::multiply_adds, wanted);
    threads = int(std::clamp<int64_t>(wanted, 1, std::max<int64_t>(B, 1)));
    if (!rows_only && wanted > 1 && B < 4 * wanted && !(B >= 2 * wanted && B % wanted == 0)) {
      const int64_t most = std::min<int64_t>(units, B * work / 8192);  // a barrier costs as much as some thousand sums
      if (most >= wanted || B < wanted) {
        by_rows = false;
        threads = int(std::clamp<int64_t>(most, 1, wanted));
      }
    }
    int64_t rank = 0, sum = 0;
    for (int i = 0; i <= threads; ++i) {
      while (rank < B && sum + order.length[rank] / 2 < total * i / threads) sum += order.length[rank++];
      cut.push_back(i == threads ? B : rank);
    }
  }

  int parts() const { return by_rows ? threads : 1; }

  // f(part) for what a thread has to do: pieces are the parts, where rows are divided.
  template <class F>
  void each(const Member& member, const F& f) const {
    if (!by_rows) f(units_of(member));
    else member.pieces.each(member.thread, [&](int i) { f(Part{cut[i], cut[i + 1], 0, blocks, i}); });
  }

  // All rows, and a thread's share of the units.
  Part units_of(const Member& member) const {
    return {0, cut.back(), blocks * member.thread / member.threads, blocks * (member.thread + 1) / member.threads, 0};
  }
};

// Steps [begin, end) of the ranks of a part, and where each of its rows lies in an array of all of them. Inputs are projected
// and gradients multiplied by chunks, which stay in the cache on their way from one product to the next.
struct Chunk {
  int64_t begin, end, rows = 0;

  Chunk(const Order& order, const Part& part, int64_t begin, int64_t end) : begin(begin), end(end), part_(part) {
    for (int64_t t = begin; t < end; ++t) {
      offset_.push_back(rows);
      rows += count(order, t);
    }
  }

  int64_t count(const Order& order, int64_t t) const {
    return std::max<int64_t>(std::min(part_.end, order.running[t]) - part_.first, 0);
  }
  int64_t among(int64_t rank) const { return rank - part_.first; }  // the ranks of the part
  int64_t at(int64_t t, int64_t rank) const { return offset_[t - begin] + among(rank); }

  // f(rank, t) for every row, the steps of a rank one after the other: so they lie in the arrays of the caller.
  template <class F>
  void each(const Order& order, const F& f) const {
    for (int64_t rank = part_.first; rank < part_.end; ++rank)
      for (int64_t t = begin; t < std::min(end, order.length[rank]); ++t) f(rank, t);
  }

  // How many steps of a part to take: `bytes` is what a row occupies. Half of a small L2 cache, and rows enough for a product.
  static int64_t steps(const Part& part, int64_t bytes) {
    const int64_t rows = std::clamp<int64_t>((1 << 18) / bytes, 128, 512);
    return std::max<int64_t>(rows / std::max<int64_t>(part.end - part.first, 1), 1);
  }

 private:
  Part part_;
  std::vector<int64_t> offset_;
};

}  // namespace elman::ELMAN_NS
