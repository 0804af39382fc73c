// Packed weights that know how they are stored (narrow.h), and the products with them (blocks.h).
#pragma once

#include "blocks.h"
#include "kernels.h"

namespace elman::ELMAN_NS {

template <class Real>
class Panels {
 public:
  Panels() = default;

  // Of `panels` panels of G vectors and depth K, as pack_gates makes them.
  Panels(Buffer<Real> packed, int64_t panels, int64_t K, int G, Stored stored)
      : wide_(std::move(packed)), K_(K), stored_(stored) {
    if constexpr (std::is_same_v<Real, float>) {
      if (stored == Stored::bfloat16) halve(panels, G * lanes<Real>);
      if (stored == Stored::int8) quarter(panels, G * lanes<Real>);
      if (stored != Stored::whole) wide_.reset();
    }
  }

  explicit operator bool() const { return wide_ || halves_ || bytes_; }

  // run_panels with these weights.
  template <int G>
  void run(int64_t left, int64_t right, int64_t rows, const Real* x, int64_t ldx, const Start<Real>* start, Real* out,
           int64_t ldo) const {
    const auto with = [&](auto packed) { run_panels<G>(packed, left, right, rows, x, ldx, K_, start, out, ldo); };
    if constexpr (std::is_same_v<Real, float>) {
      if (stored_ == Stored::bfloat16) return with(Packed<Real, Bfloat16>{halves_.get()});
      if (stored_ == Stored::int8) return with(Packed<Real, int8_t>{bytes_.get(), scales_.get()});
    }
    with(Packed<Real>{wide_.get()});
  }

 private:
  // A panel is [k][columns], and becomes [k / 2][columns][2].
  void halve(int64_t panels, int64_t columns) {
    const int64_t depth = packed_depth<Bfloat16>(K_);
    halves_ = zeros<Bfloat16>(panels * depth * columns);
    for (int64_t j = 0; j < panels; ++j)
      for (int64_t k = 0; k < K_; ++k)
        for (int64_t c = 0; c < columns; ++c)
          halves_[(j * depth + k / 2 * 2) * columns + 2 * c + k % 2] = to_bfloat16(wide_[(j * K_ + k) * columns + c]);
  }

  // A panel is [k][columns]; its scales are [group][columns].
  void quarter(int64_t panels, int64_t columns) {
    const int64_t groups = (K_ + group - 1) / group;
    bytes_ = allocate<int8_t>(panels * K_ * columns);
    scales_ = allocate<Real>(panels * groups * columns);
    for (int64_t j = 0; j < panels; ++j)
      for (int64_t g = 0; g < groups; ++g)
        for (int64_t c = 0; c < columns; ++c) {
          const int64_t at = (j * K_ + g * group) * columns + c, count = std::min(group, K_ - g * group);
          const float scale = scales_[(j * groups + g) * columns + c] = scale_of(wide_.get() + at, count, columns);
          for (int64_t k = 0; k < count; ++k) bytes_[at + k * columns] = to_int8(wide_[at + k * columns], scale);
        }
  }

  Buffer<Real> wide_, scales_;
  Buffer<Bfloat16> halves_;
  Buffer<int8_t> bytes_;
  int64_t K_ = 0;
  Stored stored_ = Stored::whole;
};

}  // namespace elman::ELMAN_NS
