// Attention of all steps of all rows, where no recurrence depends on it. Rows over the threads.
#include "attention.h"

#include "parallel.h"
#include "steps.h"

namespace elman::ELMAN_NS {
namespace {

template <class Real>
int threads_of(const AttendInputs<Real>& in, int threads) {
  return threads_for(in.memory.B * in.T * in.memory.S * (in.memory.A + in.memory.M), WorthAThread::multiply_adds, threads);
}

}  // namespace

template <class Real>
void attend(const AttendInputs<Real>& in, const AttendOutputs<Real>& out, int threads) {
  const Attention<Real> attention(in.memory);
  parallel(threads_of(in, threads), in.memory.B, [&](int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row)
      for (int64_t i = row * in.T; i < (row + 1) * in.T; ++i)
        attention.forward(row, in.query + i * in.memory.A, out.weights + i * in.memory.S, out.context + i * in.memory.M);
  });
}

template <class Real>
void attend_back(const AttendInputs<Real>& in, const AttendArriving<Real>& arriving, const AttendGradients<Real>& to,
                 int threads) {
  const Attention<Real> attention(in.memory);
  parallel(threads_of(in, threads), in.memory.B, [&](int64_t first, int64_t end) {
    const auto room = allocate<Real>(in.memory.S);
    for (int64_t row = first; row < end; ++row)
      for (int64_t i = row * in.T; i < (row + 1) * in.T; ++i)
        attention.backward(
            row, in.query + i * in.memory.A, arriving.weights + i * in.memory.S, arriving.gcontext + i * in.memory.M,
            arriving.gweights ? arriving.gweights + i * in.memory.S : nullptr, to.gquery + i * in.memory.A, to, room.get());
  });
}

template <class Real>
int append(Program<Real>& program, const AttendOperation<Real>& o) {
  struct Held {
    Buffer<Real> keys, values, v;
    std::vector<int64_t> lengths;
  };
  Memory<Real> m = o.memory;
  auto held = std::make_shared<Held>();
  const auto copied = [](const Real* from, int64_t n) {
    auto to = allocate<Real>(n);
    if (n > 0) std::memcpy(to.get(), from, n * sizeof(Real));
    return to;
  };
  held->keys = copied(m.keys, m.B * m.S * m.A), held->values = copied(m.values, m.B * m.S * m.M);
  if (m.v) held->v = copied(m.v, m.A);
  held->lengths.assign(m.lengths, m.lengths + m.B);
  m.keys = held->keys.get(), m.values = held->values.get(), m.v = held->v.get(), m.lengths = held->lengths.data();
  auto& steps = Steps<Real>::of(program);
  const int query = o.query, weights = o.weights, context = steps.slot(m.M);
  steps.each_row([=, held = held, each = o.each, attention = Attention<Real>(m)](Workspace<Real>& w, int64_t row) {
    attention.forward(w.number(row) / each, w.at(query, row), w.at(weights, row), w.at(context, row));
  });
  steps.costs(m.S * (m.M + (m.v ? 8 : 1) * m.A));  // a hyperbolic tangent for each
  return context;
}

template Attend<float> attend<float>;
template Attend<double> attend<double>;
template AttendBack<float> attend_back<float>;
template AttendBack<double> attend_back<double>;
ELMAN_APPEND(AttendOperation)

}  // namespace elman::ELMAN_NS
