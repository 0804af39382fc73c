// Programs (steps.h), from which streams are made (state_rows.h); and the operations that only move columns.
#include <algorithm>

#include "state_rows.h"
#include "steps.h"

namespace elman::ELMAN_NS {

template <class Real>
int Steps<Real>::lookup(int64_t V, int64_t width, const Real* table) {
  const int x = slot(width);
  constants_.push_back(allocate<Real>(V * width));
  std::memcpy(constants_.back().get(), table, V * width * sizeof(Real));
  looked_up_ = x, V_ = V, table_ = constants_.back().get();
  add([x, width, from = table_](Work& w) {
    for (int64_t row = 0; row < w.rows; ++row) std::memcpy(w.at(x, row), from + w.symbols[row] * width, width * sizeof(Real));
  });
  return x;
}

// Where they lie, but of a state, which changes, and of what symbols name, which products remember by its slot.
template <class Real>
int Steps<Real>::cut(int x, int64_t first, int64_t count) {
  if (slots_[x].home == Home::state || x == looked_up_) {
    const int y = slot(count);
    each_row([=](Work& w, int64_t row) { copy_numbers(w.at(x, row) + first, w.at(y, row), count); });
    return y;
  }
  Slot view = slots_[x];
  view.width = count, view.offset += first;
  return add_slot(view);
}

template <class Real>
Workspace<Real> Steps<Real>::workspace(int64_t rows) const {
  Work w;
  w.arrays = zeros<Real>((rows + 1) * workspace_row_);  // whole rows of some columns are read past the last row
  for (const Slot& slot : slots_) {
    if (slot.home == Home::constant) w.places.push_back({constants_[slot.begin].get() + slot.offset, 0});
    else if (slot.home == Home::state) w.places.push_back({nullptr, state_row_});
    else w.places.push_back({w.arrays.get() + rows * slot.begin + slot.offset, slot.stride});
  }
  return w;
}

template <class Real>
std::unique_ptr<Stream<Real>> Steps<Real>::stream(int64_t B) {
  return std::make_unique<StateRows<Steps<Real>, Real>>(*this, B);
}

template <class Real>
Program<Real>* program(Stored stored) {
  return new Steps<Real>(stored);
}

template <class Real>
int append(Program<Real>& program, const ConstantOperation<Real>& o) {
  return Steps<Real>::of(program).constant(o.width, o.values);
}

template <class Real>
int append(Program<Real>& program, const LookupOperation<Real>& o) {
  return Steps<Real>::of(program).lookup(o.V, o.width, o.table);
}

template <class Real>
int append(Program<Real>& program, const CutOperation<Real>& o) {
  return Steps<Real>::of(program).cut(o.x, o.first, o.count);
}

template <class Real>
int append(Program<Real>& program, const CopyOperation<Real>& o) {
  Steps<Real>::of(program).each_row(
      [o](Workspace<Real>& w, int64_t row) { copy_numbers(w.at(o.x, row) + o.first, w.at(o.y, row) + o.to, o.count); });
  return o.y;
}

template <class Real>
int append(Program<Real>& program, const GatherOperation<Real>& o) {
  auto& steps = Steps<Real>::of(program);
  const int x = o.x, y = steps.slot(o.count);
  const int64_t count = o.count;
  const std::vector<int64_t> from(o.columns, o.columns + count);
  if (count > 0 && std::count(from.begin(), from.end(), from[0]) == count)  // one column beside many
    steps.each_row([=, column = from[0]](Workspace<Real>& w, int64_t row) {
      const Vec<Real> value = splat(w.at(x, row)[column]);
      for (int64_t i = 0; i < count; i += lanes<Real>) store(w.at(y, row) + i, value);
    });
  else
    steps.each_row([=](Workspace<Real>& w, int64_t row) {
      const Real* given = w.at(x, row);
      Real* to = w.at(y, row);
      for (int64_t i = 0; i < count; ++i) to[i] = given[from[i]];
    });
  return y;
}

template NewProgram<float> program<float>;
template NewProgram<double> program<double>;
ELMAN_APPEND(ConstantOperation)
ELMAN_APPEND(LookupOperation)
ELMAN_APPEND(CutOperation)
ELMAN_APPEND(CopyOperation)
ELMAN_APPEND(GatherOperation)

}  // namespace elman::ELMAN_NS
