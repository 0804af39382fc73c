// The gated loop with attention inside, backward: rows over the threads, from the last step to the first. It leaves the gradients
// of every product's result; what they are for the weights, products over all steps, is the caller's.
//
// A reset is a branch: what would have flowed back across it is not read.
#include "attention.h"
#include "blocks.h"
#include "gated_gradients.h"
#include "gated_step.h"
#include "parallel.h"
#include "rows.h"

namespace elman::ELMAN_NS {
namespace {

template <class Cell, class Real>
class LoopBack {
  static constexpr int L = lanes<Real>, P = 2 * L;

 public:
  LoopBack(const AttendedInputs<Real>& inputs, const AttendedArriving<Real>& arriving, const AttendedGradients<Real>& gradients,
           Phi phi, int threads)
      : in_(inputs),
        from_(arriving),
        to_(gradients),
        phi_(phi),
        H_(in_.weights.H),
        M_(in_.memory.M),
        A_(in_.memory.A),
        D_(in_.weights.D),
        layout_(gated_layout<Cell>(in_.weights)),
        attention_(in_.memory),
        order_(in_.B, in_.T, in_.lengths, in_.reset, in_.T, false),
        division_(order_, 1, H_ * (H_ + D_) * Cell::gates, true, threads),
        wide_(wide(H_)),
        wide_D_(wide(D_)),
        ldg_(Cell::gates * wide_ + 16),
        ld_(wide(in_.O ? H_ + M_ : A_)),
        zeros_(zeros<Real>(std::max({wide_, wide_D_, ld_}))) {
    const GatedWeights<Real>& w = in_.weights;
    W_ = pack_back(w.w, H_, H_, wide_, 0, Cell::gates, 0);
    U_ = pack_back(w.U, H_, D_, wide_, 0, Cell::gates, 0);
    product_ = in_.O ? pack_back(in_.O, D_, H_ + M_, wide_D_, 0, 1, 0) : pack_back(in_.Q, A_, H_, ld_, 0, 1, 0);
    dh_ = zeros<Real>(in_.B * wide_);
    if (Cell::has_c) dc_ = zeros<Real>(in_.B * wide_);
    fed_ = zeros<Real>(in_.B * wide_D_);
  }

  int threads() const { return division_.threads; }

  void operator()(Member& team) {
    division_.each(team, [&](const Part& part) {
      run(part);
      for (int64_t rank = part.first; rank < part.end; ++rank) {
        begin(rank, from_.glast_h, dh_.get(), to_.gh0, H_, wide_);
        if (Cell::has_c) begin(rank, from_.glast_c, dc_.get(), to_.gc0, H_, wide_);
        if (in_.O) begin(rank, from_.glast_y, fed_.get(), to_.gy0, D_, wide_D_);
      }
    });
  }

 private:
  // Arrays of the rows of a part, for one step.
  struct Work {
    Buffer<Real> g, gu;  // gradients of the gates' sums, and of u where that is another
    Buffer<Real> wide;   // of [h, context], or of the query
    Buffer<Real> pre, D, room;
  };

  static int64_t wide(int64_t n) { return (n + P - 1) / P * P; }

  void begin(int64_t rank, const Real* last, const Real* carried, Real* to, int64_t width, int64_t stride) const {
    const int64_t row = order_.row[rank];
    const Real* found = order_.length[rank] == 0 ? last + row * width
                        : in_.reset[row * in_.T] ? zeros_.get()
                                                 : carried + rank * stride;
    std::memcpy(to + row * width, found, width * sizeof(Real));
  }

  void run(const Part& part) {
    const int64_t rows = part.end - part.first;
    Work w;
    w.g = zeros<Real>(rows * ldg_);
    if (Cell::shared_last) w.gu = zeros<Real>(rows * ldg_);
    w.wide = zeros<Real>(rows * ld_);
    if (in_.O) w.pre = zeros<Real>(rows * wide_D_);
    w.D = zeros<Real>(rows * wide_);
    w.room = allocate<Real>(in_.memory.S + std::max(A_, M_));
    for (int64_t t = in_.T - 1; t >= 0; --t)
      if (const int64_t count = std::min(part.end, order_.running[t]) - part.first; count > 0) step(t, part.first, count, w);
  }

  void step(int64_t t, int64_t first, int64_t count, Work& w) {
    if (in_.O) outputs(t, first, count, w);
    for (int64_t i = 0; i < count; ++i) {
      const Real *next = carried(t, first + i, from_.glast_h, dh_.get(), H_, wide_),
                 *gh = in_.O ? w.wide.get() + i * ld_ : at(from_.gh, first + i, t);
      for (int64_t n = 0; n < H_; ++n) w.D[i * wide_ + n] = gh[n] + next[n];
      gates(t, first + i, i, w);
    }
    const Real* gu = Cell::shared_last ? w.gu.get() : w.g.get();
    const Start<Real> zero{zeros_.get(), 0};
    run_pairs<Real>(W_.get(), 0, wide_ / P, H_, count, w.g.get(), ldg_, Cell::gates * wide_, nullptr, dh_.get() + first * wide_,
                    wide_);
    run_pairs(U_.get(), 0, wide_D_ / P, D_, count, gu, ldg_, Cell::gates * wide_, &zero, fed_.get() + first * wide_D_, wide_D_);
    if (!in_.O) contexts(t, first, count, w);
  }

  // Through y = tanh(O [h, context] + o) and the attention behind it: w.wide has the gradient of h.
  void outputs(int64_t t, int64_t first, int64_t count, Work& w) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t rank = first + i, place = order_.row[rank] * in_.T + t;
      const Real *next = carried(t, rank, from_.glast_y, fed_.get(), D_, wide_D_), *gy = at(from_.gy, rank, t),
                 *y = from_.y + place * D_;
      Real* pre = w.pre.get() + i * wide_D_;
      for (int64_t n = 0; n < D_; ++n) pre[n] = (gy[n] + next[n]) * (Real(1) - y[n] * y[n]);
      std::memcpy(to_.gpre + place * D_, pre, D_ * sizeof(Real));
    }
    const Start<Real> zero{zeros_.get(), 0};
    run_pairs(product_.get(), 0, ld_ / P, H_ + M_, count, w.pre.get(), wide_D_, wide_D_, &zero, w.wide.get(), ld_);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = order_.row[first + i], place = row * in_.T + t;
      Real *both = w.wide.get() + i * ld_, *by_query = w.room.get() + in_.memory.S;
      attention_.backward(row, from_.h + place * H_, from_.weights + place * in_.memory.S, both + H_, nullptr, by_query,
                          memory(), w.room.get());
      for (int64_t n = 0; n < H_; ++n) both[n] += by_query[n];
    }
  }

  // Through the context that was fed, and its query Q h'.
  void contexts(int64_t t, int64_t first, int64_t count, Work& w) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t rank = first + i, row = order_.row[rank], place = row * in_.T + t;
      Real *gcontext = fed_.get() + rank * wide_D_, *gquery = w.wide.get() + i * ld_;
      const Real* arrives = at(from_.gcontext, rank, t);
      for (int64_t n = 0; n < M_; ++n) gcontext[n] += arrives[n];
      attention_.backward(row, from_.query + place * A_, from_.weights + place * in_.memory.S, gcontext, nullptr, gquery,
                          memory(), w.room.get());
      std::memcpy(to_.gquery + place * A_, gquery, A_ * sizeof(Real));
    }
    run_pairs<Real>(product_.get(), 0, wide_ / P, H_, count, w.wide.get(), ld_, ld_, nullptr, dh_.get() + first * wide_, wide_);
  }

  AttendGradients<Real> memory() const { return {nullptr, to_.gkeys, to_.gvalues, to_.gv}; }

  // The cell: gradients of its sums from w.D, that of h; dh_ and dc_ get what reaches the state before without a product.
  void gates(int64_t t, int64_t rank, int64_t i, Work& w) {
    const int64_t row = order_.row[rank], place = row * in_.T + t;
    const bool reset = in_.reset[place];
    const Real* h = reset ? zeros_.get() : t > 0 ? from_.h + (place - 1) * H_ : in_.h0 + row * H_;
    const Real *c = Cell::has_c ? cell_before(t, rank, reset) : nullptr,
               *dc_in = Cell::has_c ? carried(t, rank, from_.glast_c, dc_.get(), H_, wide_) : nullptr;
    const Real* save = from_.saved + (order_.begin[t] + rank) * layout_.saved_row;
    Real *g = w.g.get() + i * ldg_, *gu = Cell::shared_last ? w.gu.get() + i * ldg_ : g;
    Backward<Real> b;
    b.stride = layout_.units;
    b.phi = phi_;
    b.normed = false;
    b.peephole = nullptr;
    for (int64_t n = 0; n < H_; n += L) {
      const int64_t units = H_ - n;
      b.save = save + n;
      b.extra = Vec<Real>{};  // the GRU's bias, which its gradients do not need
      b.h = load_some(h + n, units);
      b.y = load_some(from_.h + place * H_ + n, units);
      b.D = load<Vec<Real>>(w.D.get() + i * wide_ + n);
      if (Cell::has_c) b.c = load_some(c + n, units), b.dc = load_some(dc_in + n, units);
      Cell::template backward<Real>(b);
      // Zero past the last unit, whatever an infinity in the state has made of the lanes there.
      for (int k = 0; k < Cell::gates; ++k) {
        store_some(g + k * wide_ + n, b.g[k], units);
        if (Cell::shared_last) store_some(gu + k * wide_ + n, k == Cell::gates - 1 ? b.gu_last : b.g[k], units);
      }
      store_some(dh_.get() + rank * wide_ + n, b.direct, units);
      if (Cell::has_c) store_some(dc_.get() + rank * wide_ + n, b.dc, units);
    }
    for (int k = 0; k < Cell::gates; ++k) {
      std::memcpy(to_.gu + (place * Cell::gates + k) * H_, gu + k * wide_, H_ * sizeof(Real));
      if (Cell::shared_last) std::memcpy(to_.gsum + (place * Cell::gates + k) * H_, g + k * wide_, H_ * sizeof(Real));
    }
  }

  const Real* cell_before(int64_t t, int64_t rank, bool reset) const {
    if (reset) return zeros_.get();
    if (t == 0) return in_.c0 + order_.row[rank] * H_;
    return from_.saved + (order_.begin[t - 1] + rank) * layout_.saved_row + (Cell::saves - 1) * layout_.units;
  }

  const Real* at(const Rows<Real>& g, int64_t rank, int64_t t) const { return g.data + order_.row[rank] * g.row + t * g.time; }

  // What arrives from the step after: the gradient of the last state at a row's end, nothing across a reset.
  const Real* carried(int64_t t, int64_t rank, const Real* last, const Real* from, int64_t width, int64_t stride) const {
    const int64_t row = order_.row[rank];
    if (t + 1 == order_.length[rank]) return last + row * width;
    return in_.reset[row * in_.T + t + 1] ? zeros_.get() : from + rank * stride;
  }

  AttendedInputs<Real> in_;
  AttendedArriving<Real> from_;
  AttendedGradients<Real> to_;
  Phi phi_;
  int64_t H_, M_, A_, D_;
  GatedLayout layout_;
  Attention<Real> attention_;
  Order order_;
  Division division_;
  int64_t wide_, wide_D_, ldg_, ld_;
  Buffer<Real> zeros_, W_, U_, product_, dh_, dc_, fed_;
};

}  // namespace

template <class Real>
void attended_back(const AttendedInputs<Real>& inputs, const AttendedArriving<Real>& arriving,
                   const AttendedGradients<Real>& gradients, int threads) {
  with_cell(inputs.weights.kind, [&](auto cell, Phi phi) {
    if constexpr (attends<decltype(cell)>) {
      LoopBack<decltype(cell), Real> loop(inputs, arriving, gradients, phi, threads);
      team(loop.threads(), [&](Member& member) { loop(member); });
    } else {
      throw std::invalid_argument("native kernel: this kind of gated cell has no attention inside its loop.");
    }
  });
}

template AttendedBack<float> attended_back<float>;
template AttendedBack<double> attended_back<double>;

}  // namespace elman::ELMAN_NS
