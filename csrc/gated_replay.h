// The forward loop once more, some steps at a time, for a backward pass that has checkpoints only: gated.cpp runs,
// gated_back.cpp asks.
#pragma once

#include <memory>

#include "gated_layout.h"
#include "rows.h"

namespace elman::ELMAN_NS {

template <class Real>
struct Replay {
  virtual ~Replay() = default;
  // Steps [begin, end) of a part from the checkpoint before `begin`: fills saved. The part's units are divided among the
  // member's team; false if that was dissolved, and the member is to leave.
  virtual bool replay(int64_t begin, int64_t end, const Real* checkpoints, Part part, Member& member) = 0;
};

// `saved` has room for `every` steps.
template <class Real>
std::unique_ptr<Replay<Real>> gated_replay(const GatedInputs<Real>& inputs, Real* saved);

// Where the state of a rank before step t is, h and then c.
template <class Pointer, class Real>
Pointer checkpoint_of(Pointer checkpoints, const GatedLayout& layout, const GatedInputs<Real>& in, int64_t t, int64_t rank) {
  return checkpoints + (t / in.every * in.B + rank) * layout.state_row;
}

// Whether a thread must have all units of its rows: where h is projected or anything is normalised.
template <class Real>
bool whole_rows(const GatedOptions<const Real>& options) {
  return options.P || options.gain || options.gain_c;
}

}  // namespace elman::ELMAN_NS
