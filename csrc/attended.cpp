// The gated loop with attention inside, forward: time inside, rows over the threads. gated_step.h has the step of the cell,
// attention.h that of the attention.
//
//   additive (O null):  query = Q h', context, u + U context, step of the cell
//   fed:                u + U y', step of the cell, context by h, y = tanh(O [h, context] + o)
#include "attention.h"
#include "blocks.h"
#include "gated_step.h"
#include "parallel.h"
#include "rows.h"

namespace elman::ELMAN_NS {
namespace {

template <class Cell, class Real>
class Loop {
  static constexpr int L = lanes<Real>;

 public:
  Loop(const AttendedInputs<Real>& inputs, const AttendedOutputs<Real>& outputs, Phi phi, int threads)
      : in_(inputs),
        out_(outputs),
        H_(in_.weights.H),
        M_(in_.memory.M),
        A_(in_.memory.A),
        D_(in_.weights.D),
        step_(in_.weights, phi),
        attention_(in_.memory),
        order_(in_.B, in_.T, in_.lengths, in_.reset, in_.T, false),
        division_(order_, step_.blocks, H_ * (H_ * step_.products + D_ * Cell::gates), true, threads),
        ldf_(wide(D_) + 16),
        ldq_(wide(in_.O ? D_ : A_)),
        zeros_(zeros<Real>(std::max(ldq_, ldf_))) {
    for (auto& h : h_) h = zeros<Real>(in_.B * step_.layout.outputs);
    if (Cell::has_c) c_ = zeros<Real>(in_.B * step_.layout.units);
    fed_ = zeros<Real>(in_.B * ldf_);
    product_ = in_.O ? pack_gates<1>(in_.O, D_, H_ + M_, 0) : pack_gates<1>(in_.Q, A_, H_, 0);
    if (in_.O) bias_ = padded_copy(in_.o, D_, D_, wide(D_));
    begin();
  }

  int threads() const { return division_.threads; }

  void operator()(Member& team) {
    division_.each(team, [&](const Part& part) { run(part); });
  }

 private:
  static int64_t wide(int64_t n) { return (n + L - 1) / L * L; }

  // The state before the first step, and the last state of rows that have none.
  void begin() {
    for (int64_t rank = 0; rank < in_.B; ++rank) {
      begin(rank, h_[0].get() + rank * step_.layout.outputs, in_.h0, out_.last_h, H_);
      if (Cell::has_c) begin(rank, c_.get() + rank * step_.layout.units, in_.c0, out_.last_c, H_);
      if (in_.O) begin(rank, fed_.get() + rank * ldf_, in_.y0, out_.last_y, D_);
    }
  }
  void begin(int64_t rank, Real* state, const Real* from, Real* last, int64_t width) const {
    const int64_t row = order_.row[rank];
    if (order_.length[rank] == 0) std::memcpy(last + row * width, from + row * width, width * sizeof(Real));
    else if (!in_.reset[row * in_.T]) std::memcpy(state, from + row * width, width * sizeof(Real));
  }

  void run(const Part& part) {
    const int64_t ldu = step_.ldu, rows = part.end - part.first;
    const auto u = allocate<Real>(rows * ldu), sums = allocate<Real>(step_.separate_sums() ? rows * ldu : 0);
    const auto both = allocate<Real>(in_.O ? rows * (H_ + M_) : 0), made = allocate<Real>(rows * ldq_);
    const Units units{0, step_.blocks};
    for (int64_t t = 0; t < in_.T; ++t) {
      const int64_t count = std::min(part.end, order_.running[t]) - part.first;
      if (count <= 0) return;
      if (!in_.O) look_before(t, part.first, count, made.get());
      for (int64_t i = 0; i < count; ++i)
        step_.arrange(in_.u.data + order_.row[part.first + i] * in_.u.row + t * in_.u.time, u.get() + i * ldu, units);
      step_.project(count, units, fed_.get() + part.first * ldf_, ldf_, u.get(), true);
      step_(
          count, units, step_.layout.outputs, u.get(), step_.separate_sums() ? sums.get() : u.get(),
          [&](int64_t i) { return row_step(t, part.first + i); }, [] {});
      if (in_.O) look_after(t, part.first, count, both.get(), made.get());
    }
  }

  // Additive: the context is what is fed.
  void look_before(int64_t t, int64_t first, int64_t count, Real* query) {
    const Start<Real> zero{zeros_.get(), 0};
    run_panels<1, Real>(product_.get(), 0, ldq_ / L, count, h_[t & 1].get() + first * step_.layout.outputs,
                        step_.layout.outputs, H_, &zero, query, ldq_);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = order_.row[first + i] * in_.T + t;
      std::memcpy(out_.query + at * A_, query + i * ldq_, A_ * sizeof(Real));
      attention_.forward(order_.row[first + i], query + i * ldq_, out_.weights + at * in_.memory.S, out_.context + at * M_);
      std::memcpy(fed_.get() + (first + i) * ldf_, out_.context + at * M_, M_ * sizeof(Real));
    }
  }

  // Fed: the output is.
  void look_after(int64_t t, int64_t first, int64_t count, Real* both, Real* y) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = order_.row[first + i], at = row * in_.T + t;
      attention_.forward(row, out_.h + at * H_, out_.weights + at * in_.memory.S, out_.context + at * M_);
      std::memcpy(both + i * (H_ + M_), out_.h + at * H_, H_ * sizeof(Real));
      std::memcpy(both + i * (H_ + M_) + H_, out_.context + at * M_, M_ * sizeof(Real));
    }
    const Start<Real> start{bias_.get(), 0};
    run_panels<1, Real>(product_.get(), 0, ldq_ / L, count, both, H_ + M_, H_ + M_, &start, y, ldq_);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t rank = first + i, row = order_.row[rank], at = row * in_.T + t;
      const bool ends = t + 1 == order_.length[rank];
      for (int64_t n = 0; n < D_; n += L)
        store_some(out_.y + at * D_ + n, hyperbolic_tangent<Real>(load<Vec<Real>>(y + i * ldq_ + n)), D_ - n);
      if (ends) std::memcpy(out_.last_y + row * D_, out_.y + at * D_, D_ * sizeof(Real));
      const bool forget = !ends && in_.reset[row * in_.T + t + 1];
      std::memcpy(fed_.get() + rank * ldf_, forget ? zeros_.get() : out_.y + at * D_, D_ * sizeof(Real));
    }
  }

  RowStep<Real> row_step(int64_t t, int64_t rank) const {
    const int64_t row = order_.row[rank];
    const bool ends = t + 1 == order_.length[rank];
    RowStep<Real> s{h_[t & 1].get() + rank * step_.layout.outputs,
                    h_[(t + 1) & 1].get() + rank * step_.layout.outputs,
                    c_.get() + rank * step_.layout.units,
                    nullptr,
                    nullptr,
                    nullptr};
    s.y = out_.h + (row * in_.T + t) * H_;
    if (ends) s.last_h = out_.last_h + row * H_, s.last_c = Cell::has_c ? out_.last_c + row * H_ : nullptr;
    s.forget = !ends && in_.reset[row * in_.T + t + 1];
    s.save = out_.saved ? out_.saved + (order_.begin[t] + rank) * step_.layout.saved_row : nullptr;
    return s;
  }

  AttendedInputs<Real> in_;
  AttendedOutputs<Real> out_;
  int64_t H_, M_, A_, D_;
  GatedStep<Cell, Real> step_;
  Attention<Real> attention_;
  Order order_;
  Division division_;
  int64_t ldf_, ldq_;
  Buffer<Real> zeros_, h_[2], c_, fed_, product_, bias_;
};

}  // namespace

template <class Real>
void attended(const AttendedInputs<Real>& inputs, const AttendedOutputs<Real>& outputs, int threads) {
  with_cell(inputs.weights.kind, [&](auto cell, Phi phi) {
    if constexpr (attends<decltype(cell)>) {
      Loop<decltype(cell), Real> loop(inputs, outputs, phi, threads);
      team(loop.threads(), [&](Member& member) { loop(member); });
    } else {
      throw std::invalid_argument("native kernel: this kind of gated cell has no attention inside its loop.");
    }
  });
}

template Attended<float> attended<float>;
template Attended<double> attended<double>;

}  // namespace elman::ELMAN_NS
