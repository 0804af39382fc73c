// Attention of all steps of all rows, where no recurrence depends on it. Rows over the threads.
#include "attention.h"

#include "parallel.h"

namespace elman::ELMAN_NS {
namespace {

template <class Real>
int threads_of(const AttendInputs<Real>& in, int threads) {
  return threads_for(in.B * in.T * in.S * (in.A + in.M), WorthAThread::multiply_adds, threads);
}

}  // namespace

template <class Real>
void attend(const AttendInputs<Real>& in, const AttendOutputs<Real>& out, int threads) {
  const Attention<Real> attention(in);
  parallel(threads_of(in, threads), in.B, [&](int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row)
      for (int64_t i = row * in.T; i < (row + 1) * in.T; ++i)
        attention.forward(row, in.query + i * in.A, out.weights + i * in.S, out.context + i * in.M);
  });
}

template <class Real>
void attend_back(const AttendInputs<Real>& in, const AttendArriving<Real>& arriving, const AttendGradients<Real>& to,
                 int threads) {
  const Attention<Real> attention(in);
  parallel(threads_of(in, threads), in.B, [&](int64_t first, int64_t end) {
    const auto room = allocate<Real>(in.S);
    for (int64_t row = first; row < end; ++row)
      for (int64_t i = row * in.T; i < (row + 1) * in.T; ++i)
        attention.backward(row, in.query + i * in.A, arriving.weights + i * in.S, arriving.gcontext + i * in.M,
                           arriving.gweights ? arriving.gweights + i * in.S : nullptr, to.gquery + i * in.A, to, room.get());
  });
}

template Attend<float> attend<float>;
template Attend<double> attend<double>;
template AttendBack<float> attend_back<float>;
template AttendBack<double> attend_back<double>;

}  // namespace elman::ELMAN_NS
