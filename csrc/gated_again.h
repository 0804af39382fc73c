// The forward loop once more, some steps at a time, for a way back that kept only states: gated.cpp runs, gated_back.cpp asks.
#pragma once

#include <memory>

#include "kernels.h"
#include "rows.h"

namespace elman::ELMAN_NS {

template <class T>
struct Again {
  virtual ~Again() = default;
  // Steps [begin, end) of a part from the state kept before `begin`: fills saved. `together` threads divide the part's units.
  virtual void again(int64_t begin, int64_t end, const Part& part, Barrier& barrier, int together) = 0;
};

// `loop` with kept and saved, room for `every` steps, and without y, h and c.
template <class T>
std::unique_ptr<Again<T>> gated_again(int kind, const GatedLoop<T>& loop);

}  // namespace elman::ELMAN_NS
