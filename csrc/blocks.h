// The product of some rows with packed weights, a few blocks of columns at a time: what the gated loops and a stream run.
//
// Packed weights are [block][k][G][lanes]. G is the gates of a cell, whose sums for one block of units are wanted together,
// or just a number of neighbouring vectors.
#pragma once

#include "product.h"

namespace elman::ELMAN_NS {

// How many blocks are taken at once for 1, 2 or more rows: about 8 independent sums keep the multiply-adds busy.
template <int G> constexpr int few_one = G == 1 ? 8 : G == 4 ? 2 : 4;
template <int G> constexpr int few_two = G == 1 ? 4 : G == 4 ? 1 : 2;
template <int G> constexpr int many = G == 1 ? 2 : 1;
template <int G> constexpr int tall = G <= 2 ? 6 : G == 3 ? 4 : 3;

// Where sums start: gate g of a row at u + order[row] * stride + g * gate, block j at + j * block; the last gate at `shared`
// if that is not null, for all rows. Without an order row i is row i.
template <class T>
struct Start {
  const T* u;
  const int64_t* order;
  int64_t stride, gate, block;
  const T* shared;

  const T* at(int64_t row, int g, int gates) const {
    return shared && g == gates - 1 ? shared : u + (order ? order[row] : row) * stride + g * gate;
  }
};

// out[m][c][g] = start + sum over k of x[m][k] w[k] for rows [first, end) and C blocks from block j on; from what `out` holds
// if start is null. Rows of x and of out are ldx and ldo apart; out begins at row `first`.
template <int C, int G, class T>
void run_blocks(const T* packed, int64_t j, int64_t first, int64_t end, const T* x, int64_t ldx, int64_t K,
                const Start<T>* start, T* out, int64_t ldo);

// f(std::integral_constant<int, C>, j) for the blocks [left, right): C at once, the rest by fewer.
template <int C, class F>
ELMAN_INLINE int64_t each_blocks(int64_t left, int64_t right, const F& f) {
  for (; left + C <= right; left += C) f(std::integral_constant<int, C>{}, left);
  if constexpr (C > 1) return each_blocks<C / 2>(left, right, f);
  return left;
}

template <int G, class F>
ELMAN_INLINE int64_t each_blocks_for(int64_t rows, int64_t left, int64_t right, const F& f) {
  if (rows == 1) return each_blocks<few_one<G>>(left, right, f);
  if (rows == 2) return each_blocks<few_two<G>>(left, right, f);
  return each_blocks<many<G>>(left, right, f);
}

}  // namespace elman::ELMAN_NS
