// What a gated loop leaves for its backward pass, and how it lies in memory: the one place that knows.
//
// saved: a row of `saved_row` numbers for every step of every row that runs, rows in the order of their lengths:
//
//   | value 0 | value 1 | ... | value saves - 1 |  the cell's own values (gated.h, `leave`), each `units` wide
//   | normalised W h', gate 0 | gate 1 | ... |     where gain is given
//   | normalised U x, gate 0 | gate 1 | ... |      where gain_U is given
//   | scales |                                     one cache line, where anything is normalised (gated_norm.h)
//
// halves: the same rows, each number rounded to bfloat16. A step is computed with a row of whole numbers, which is narrowed when
// the step is done and widened where the backward pass comes to it.
//
// checkpoints: the state before steps 0, every, 2 every, ..., of every row, `state_row` numbers: | h | c |.
//
// H units take the room of `units`, R numbers of h that of `outputs`: rounded up to whole cache lines, so that the instruction
// set does not matter.
#pragma once

#include "kernels.h"

namespace elman {

struct GatedLayout {
  int64_t units, outputs, saved_row, state_row;

  GatedLayout(const GatedKind& kind, int64_t H, int64_t R, bool gain, bool gain_U, bool gain_c, int64_t itemsize)
      : units(padded_to_lines(H, itemsize)),
        outputs(padded_to_lines(R, itemsize)),
        saved_row((kind.saves + (gain + gain_U) * kind.gates) * units + (gain || gain_U || gain_c ? cache_line / itemsize : 0)),
        state_row(outputs + (kind.states == 2 ? units : 0)) {}

  // f(begin, end) for the stretches of a saved row that belong to the units [left, right): all of it, if these are all units.
  // (Where units are divided nothing is normalised, and there are the cell's own values only.)
  template <class F>
  void each_stretch(int64_t left, int64_t right, int64_t H, const F& f) const {
    if (left == 0 && right >= H) return f(int64_t(0), saved_row);
    for (int64_t value = 0; value < saved_row; value += units) f(value + left, value + right);
  }
};

}  // namespace elman
