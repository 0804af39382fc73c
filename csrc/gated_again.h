// The forward loop once more, some steps at a time, for a way back that kept only states: gated.cpp runs, gated_back.cpp asks.
#pragma once

#include <memory>

#include "kernels.h"
#include "product.h"
#include "rows.h"

namespace elman::ELMAN_NS {

template <class T>
struct Again {
  virtual ~Again() = default;
  // Steps [begin, end) of a part from the state kept before `begin`: fills saved. `together` threads divide the part's units.
  virtual void again(int64_t begin, int64_t end, const Part& part, Barrier& barrier, int together) = 0;
};

// Where the state of a rank before step t is kept, in a loop or its way back: h, then c.
template <class T, class Loop>
auto kept_state(const Loop& p, int64_t t, int64_t rank, bool has_c) {
  return p.kept + (t / p.every * p.B + rank) * (padded_width<T>(p.R) + (has_c ? padded_width<T>(p.H) : 0));
}

// `loop` with kept and saved, room for `every` steps, and without y, h and c.
template <class T>
std::unique_ptr<Again<T>> gated_again(int kind, const GatedLoop<T>& loop);

}  // namespace elman::ELMAN_NS
