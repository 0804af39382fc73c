// One step of a gated cell for some rows. The loop (gated.cpp) and the stream (stream.cpp) both take their steps here, so
// they agree to the bit.
//
// u and the sums of a row are [block of units][gate][lane], the gates of the second product behind all the others. The two
// are one array, unless a sum starts elsewhere: from a bias (the GRU's candidate), or from zero where it is normalised.
#pragma once

#include "gated.h"
#include "gated_layout.h"
#include "gated_norm.h"
#include "panels.h"

namespace elman::ELMAN_NS {

// Blocks of units [left, right): those that one thread computes.
struct Units {
  int64_t left, right;
};

// Where the step of one row reads and writes.
template <class Real>
struct RowStep {
  const Real* h;           // the state before
  Real* next;              // the state after; may be h itself where no other thread reads that
  Real* c;                 // updated in place
  Real *q, *z;             // room for what the second product reads, and for a gate that waits for it
  Real* cells;             // room for what the cells return, where P makes h of it
  Real* y = nullptr;       // the output, if it is wanted
  Real* last_h = nullptr;  // the state after, if this is the row's last step
  Real* last_c = nullptr;
  bool forget = false;   // the next step begins an episode: it shall find a state of zero
  Real* save = nullptr;  // what the backward pass needs, if there is one
};

template <class Cell, class Real>
class GatedStep {
  static constexpr int L = lanes<Real>;
  static constexpr int before = Cell::gates - Cell::second;  // gates that are known before the second product

 public:
  static constexpr int products = Cell::first + Cell::second;

  const int64_t H, R, blocks;  // units, numbers of h, blocks of units
  const GatedLayout layout;
  const int64_t ldu;  // from one row of u, or of the sums, to the next

  GatedStep(const GatedWeights<Real>& given, Phi phi, Stored stored = Stored::whole)
      : H(given.H),
        R(given.R),
        blocks((H + L - 1) / L),
        layout(gated_layout<Cell>(given)),
        ldu(blocks * Cell::gates * L + 16),
        D_(given.D),
        second_at_(blocks * before * L),
        phi_(phi) {
    const auto& o = given.options;
    const int64_t wide = layout.units;
    if constexpr (Cell::first > 0) first_ = packed<Cell::first>(given.w, H, R, 0, stored);
    if constexpr (Cell::second > 0) second_ = packed<Cell::second>(given.w, H, R, Cell::first, stored);
    if (given.U) {
      input_ = packed<before>(given.U, H, D_, 0, stored);
      if constexpr (Cell::second > 0) input_second_ = packed<Cell::second>(given.U, H, D_, before, stored);
      bias_ = zeros<Real>(ldu);
      if (given.b) arrange(given.b, bias_.get(), {0, blocks});
    }
    extra_ = padded_copy(given.extra, given.extra_size, H, wide);
    zeros_ = zeros<Real>(std::max(ldu, layout.outputs));
    if (o.peephole) peephole_ = padded_rows(o.peephole, Cell::gates - 1, H, wide);
    if (o.gain) gain_ = padded_rows(o.gain, Cell::gates, H, wide);
    if (o.gain_U) gain_U_ = padded_rows(o.gain_U, Cell::gates, H, wide);
    if (o.gain_c) gain_c_ = padded_rows(o.gain_c, 1, H, wide), bias_c_ = padded_rows(o.bias_c, 1, H, wide);
    if (o.P) P_ = packed<1>(o.P, R, H, 0, stored);
  }

  bool separate_sums() const { return Cell::shared_last || gain_; }
  bool projects_h() const { return bool(P_); }

  // A row of gates side by side, as u has them.
  void arrange(const Real* from, Real* to, Units units) const {
    for (int64_t j = units.left; j < units.right; ++j)
      for (int g = 0; g < Cell::gates; ++g) store(to + gate(j, g), load_some(from + g * H + j * L, H - j * L));
  }

  // u = U x + b of `rows` rows of x, ldx apart, or with `add` u + U x. Where U x is normalised, normalise_input has to follow
  // for each of them.
  void project(int64_t rows, Units units, const Real* x, int64_t ldx, Real* u, bool add = false) const {
    const auto panels = [&](auto G, const Panels<Real>& packed, int64_t at) {
      constexpr int P = panel<G>, each = G / P;
      const Start<Real> start{gain_U_ ? zeros_.get() : bias_.get() + at, 0};
      packed.template run<P>(units.left * each, units.right * each, rows, x, ldx, add ? nullptr : &start, u + at, ldu);
    };
    panels(std::integral_constant<int, before>{}, input_, 0);
    if constexpr (Cell::second > 0) panels(std::integral_constant<int, Cell::second>{}, input_second_, second_at_);
  }
  bool normalises_input() const { return bool(gain_U_); }
  void normalise_input(Real* u, Real* save) const {
    const auto at = [&](int64_t j, int g) { return gate(j, g); };
    const auto start = [&](int64_t j, int g) { return load<Vec<Real>>(bias_.get() + gate(j, g)); };
    normalise_gates<Cell, 0, Cell::gates>(H, u, at, start, gain_U_.get(), layout.units, saved_norm(save, Cell::gates));
  }

  // The step of `count` rows: at(i) is the RowStep of the i-th. The states before are ldh apart, and so are those after; q and
  // what the cells return are layout.units apart. meet() waits for the threads that have the other units.
  template <class At, class Meet>
  void operator()(int64_t count, Units units, int64_t ldh, Real* u, Real* sums, const At& at, const Meet& meet) const {
    if (count == 0) return;
    const Start<Real> zero{zeros_.get(), 0}, shared{u, ldu, extra_.get()};
    if constexpr (Cell::first > 0) {
      constexpr int P = panel<Cell::first>, each = Cell::first / P;
      first_.template run<P>(units.left * each, units.right * each, count, at(0).h, ldh,
                             gain_               ? &zero
                             : Cell::shared_last ? &shared
                                                 : nullptr,
                             sums, ldu);
      if (gain_) normalise_sums<0, Cell::first>(count, u, sums, at);
    }
    if constexpr (Cell::second > 0) {
      finish<Cell::first, false>(count, units, u, sums, at);
      meet();
      Real* rest = sums + second_at_;
      second_.template run<Cell::second>(units.left, units.right, count, at(0).q, layout.units, gain_ ? &zero : nullptr, rest,
                                         ldu);
      if (gain_) normalise_sums<Cell::first, Cell::gates>(count, u + second_at_, rest, at);
      finish<Cell::second, true>(count, units, u, rest, at);
    } else {
      finish<before, true>(count, units, u, sums, at);
    }
    if (P_) project_h(count, ldh, at);
  }

 private:
  // Gates [gate, gate + G) of w (gates * H, K).
  template <int G>
  static Panels<Real> packed(const Real* w, int64_t H, int64_t K, int gate, Stored stored) {
    return {pack_gates<G>(w, H, K, gate), (H + L - 1) / L * (G / panel<G>), K, panel<G>, stored};
  }

  // Where gate g of block j lies in a row of u or of the sums
  int64_t gate(int64_t j, int g) const {
    return g < before ? (j * before + g) * L : second_at_ + (j * Cell::second + g - before) * L;
  }

  // Gates normalised from `slot` on lie behind the values of the cell.
  SavedNorm<Real> saved_norm(Real* save, int slot) const {
    if (!save) return {nullptr, nullptr, 0};
    return {save + (Cell::saves + slot) * layout.units, saved_scales(save, layout.saved_row) + slot, layout.units};
  }

  // The sums of gates [first, end) of each row.
  template <int first, int end, class At>
  void normalise_sums(int64_t count, const Real* u, Real* sums, const At& row) const {
    for (int64_t i = 0; i < count; ++i, u += ldu, sums += ldu) {
      const auto at = [&](int64_t j, int g) { return (j * (end - first) + g - first) * L; };
      const auto start = [&](int64_t j, int g) {
        return load<Vec<Real>>(Cell::shared_last && g == Cell::gates - 1 ? extra_.get() + j * L : u + at(j, g));
      };
      normalise_gates<Cell, first, end>(H, sums, at, start, gain_.get(), layout.units, saved_norm(row(i).save, 0));
    }
  }

  // What follows from the sums of G gates: the value that the second product reads, or the new state.
  template <int G, bool last, class At>
  __attribute__((noinline)) void finish(int64_t count, Units units, const Real* u, const Real* sums, const At& at) const {
    const bool direct = !gain_c_ && !P_;  // what the cell returns is h
    const Real* extra = extra_.get();
    for (int64_t i = 0; i < count; ++i, u += ldu, sums += ldu) {
      const RowStep<Real> row = at(i);
      const bool forget = direct && row.forget;
      Real *out = P_ ? row.cells : row.next, *y = direct ? row.y : nullptr;
      Forward<Real> f;
      f.phi = phi_;
      f.normed = bool(gain_c_);
      f.stride = layout.units;
      f.save = row.save ? row.save + units.left * L : nullptr;
      for (int64_t j = units.left; j < units.right; ++j) {
        Vec<Real> a[G];
        for (int g = 0; g < G; ++g) a[g] = load<Vec<Real>>(sums + (j * G + g) * L);
        f.u = u + j * before * L;
        f.extra = load<Vec<Real>>(extra + j * L);
        f.peephole = peephole_ ? peephole_.get() + j * L : nullptr;
        f.h = Cell::has_c ? Vec<Real>{} : load<Vec<Real>>(row.h + j * L);  // a cell with c goes by that
        if constexpr (!last) {
          store(row.q + j * L, Cell::template between<Real>(a, f));
          store(row.z + j * L, f.z);
        } else {
          if (Cell::has_c) f.c = load<Vec<Real>>(row.c + j * L);
          if (Cell::second > 0) f.z = load<Vec<Real>>(row.z + j * L);
          const Vec<Real> now = Cell::template forward<Real>(a, f);
          if (y) store_some(y + j * L, now, H - j * L);
          store(out + j * L, forget ? Vec<Real>{} : now);
          if (Cell::has_c) store(row.c + j * L, forget ? Vec<Real>{} : f.c);
        }
        if (f.save) f.save += L;
      }
      if constexpr (last) {
        if (gain_c_)
          norm_c(H, row.c, gain_c_.get(), bias_c_.get(), out,
                 row.save ? saved_scales(row.save, layout.saved_row) + 1 : nullptr);
        if (Cell::has_c && row.last_c) copy_units(row.c, row.last_c, units);
        if (!direct && row.forget) std::memset(row.c, 0, layout.units * sizeof(Real));
        if (!P_) leave(row, out, units, !direct);
      }
    }
  }

  // h = P times what the cells returned
  template <class At>
  void project_h(int64_t count, int64_t ldh, const At& at) const {
    const Start<Real> zero{zeros_.get(), 0};
    P_.template run<1>(0, (R + L - 1) / L, count, at(0).cells, layout.units, &zero, at(0).next, ldh);
    for (int64_t i = 0; i < count; ++i) leave(at(i), at(i).next, {0, (R + L - 1) / L}, true);
  }

  // A new h, R wide, goes where it is wanted. `whole`: all of it is here, and nothing has been done about y and `forget` yet.
  void leave(const RowStep<Real>& row, Real* h, Units units, bool whole) const {
    if (whole && row.y) std::memcpy(row.y, h, R * sizeof(Real));
    if (row.last_h) {
      const int64_t left = units.left * L;
      std::memcpy(row.last_h + left, h + left, (std::min(units.right * L, R) - left) * sizeof(Real));
    }
    if (whole && row.forget) std::memset(h, 0, layout.outputs * sizeof(Real));
  }
  void copy_units(const Real* from, Real* to, Units units) const {
    const int64_t left = units.left * L;
    std::memcpy(to + left, from + left, (std::min(units.right * L, H) - left) * sizeof(Real));
  }

  int64_t D_, second_at_;
  Phi phi_;
  Panels<Real> first_, second_, input_, input_second_, P_;
  Buffer<Real> bias_, extra_, zeros_, peephole_, gain_, gain_U_, gain_c_, bias_c_;
};

}  // namespace elman::ELMAN_NS
