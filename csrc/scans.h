// What the kernels read and write whose channels are independent (channels.h): the linear scan, the selective scan, banks of
// complex numbers, the causal convolution; and the scan of matrices, whose heads and columns are.
#pragma once

#include "fields.h"

namespace elman {

// Linear scan (scan.cpp), real and complex; complex elements are pairs (real, imaginary), and C and strides count pairs.
// h[t] = a[t] * h[t-1] + b[t]; a reset starts from zero; h is zero past the length, last is h at the last valid step.
template <class Real>
struct ScanInputs {
  Dims n;
  Rows<Real> a, b;
  const Real* h0;
  const int64_t* lengths;
  const bool* reset;
  ELMAN_FIELDS(n, a, b, h0, lengths, reset)
};
template <class Real>
struct ScanOutputs {
  Real *h, *last;
  ELMAN_FIELDS(h, last)
};
template <class Real>
using LinearScan = void(const ScanInputs<Real>& in, const ScanOutputs<Real>& out, int threads);

// Its gradients, as Torch defines them for complex numbers: through y = a x comes ga = gy conj(x). b is not read.
// ga is (B, T, C); where `a` does not change in time its sum over time goes to sum (B, C) instead, else sum is null.
template <class Real>
struct ScanArriving {
  const Real* h;
  Rows<Real> gh;
  const Real* glast;
  ELMAN_FIELDS(h, gh, glast)
};
template <class Real>
struct ScanGradients {
  Real* ga;
  double* sum;
  Real *gb, *gh0;
  ELMAN_FIELDS(ga, sum, gb, gh0)
};
template <class Real>
using LinearScanBack = void(const ScanInputs<Real>& in, const ScanArriving<Real>& arriving, const ScanGradients<Real>& to,
                            int threads);

// Selective scan (selective.cpp), n.C = D channels with N states each, every sequence of B and C shared by the channels:
// h[t] = exp(delta[t] A) * h[t-1] + delta[t] x[t] B[t], y[t] = sum_n C[t,n] h[t,:,n]. A (D, N), h0 (B, D, N), B and C (B, T, N).
template <class Real>
struct SelectiveInputs {
  Dims n;
  int64_t N, every;  // the state is saved after every so many steps
  Rows<Real> x, delta;
  const Real* A;
  Rows<Real> B, C;
  const Real* h0;
  const int64_t* lengths;
  const bool* reset;
  ELMAN_FIELDS(n, N, every, x, delta, A, B, C, h0, lengths, reset)
};
// y (B, T, D) and last (B, D, N). saved, if not null, has room for a state each `every` steps: (B, T, R), R * every >= N * (D
// rounded up to 16).
template <class Real>
struct SelectiveOutputs {
  Real *y, *last, *saved;
  ELMAN_FIELDS(y, last, saved)
};
template <class Real>
using SelectiveScan = void(const SelectiveInputs<Real>& in, const SelectiveOutputs<Real>& out, int threads);

// The gradient of A is given for each row, gA (B, D, N).
template <class Real>
struct SelectiveArriving {
  const Real* saved;
  Rows<Real> gy;
  const Real* glast;
  ELMAN_FIELDS(saved, gy, glast)
};
template <class Real>
struct SelectiveGradients {
  Real *gx, *gdelta;
  double* gA;
  Real *gB, *gC, *gh0;
  ELMAN_FIELDS(gx, gdelta, gA, gB, gC, gh0)
};
template <class Real>
using SelectiveScanBack = void(const SelectiveInputs<Real>& in, const SelectiveArriving<Real>& arriving,
                               const SelectiveGradients<Real>& to, int threads);

// Banks of complex numbers (bank.cpp), N for each of n.C = D channels; complex numbers are pairs (real, imaginary):
// h[t] = a h[t-1] + b x[t], y[t] = sum_n Re(c[:,n] h[t,:,n]). a, b, c (D, N, 2), h0 (B, D, N, 2).
template <class Real>
struct BankInputs {
  Dims n;
  int64_t N, every;  // the state is saved after every so many steps
  Rows<Real> x;
  const Real *a, *b, *c, *h0;
  const int64_t* lengths;
  const bool* reset;
  ELMAN_FIELDS(n, N, every, x, a, b, c, h0, lengths, reset)
};
// y (B, T, D) and last (B, D, N, 2). saved, if not null, has room for a state each `every` steps: (B, T, R), R * every >= 2 * N *
// (D rounded up to 16).
template <class Real>
struct BankOutputs {
  Real *y, *last, *saved;
  ELMAN_FIELDS(y, last, saved)
};
template <class Real>
using BankScan = void(const BankInputs<Real>& in, const BankOutputs<Real>& out, int threads);

// The gradients of a, b and c are given for each row, (B, D, N, 2).
template <class Real>
struct BankArriving {
  const Real* saved;
  Rows<Real> gy;
  const Real* glast;
  ELMAN_FIELDS(saved, gy, glast)
};
template <class Real>
struct BankGradients {
  Real* gx;
  double *ga, *gb, *gc;
  Real* gh0;
  ELMAN_FIELDS(gx, ga, gb, gc, gh0)
};
template <class Real>
using BankScanBack = void(const BankInputs<Real>& in, const BankArriving<Real>& arriving, const BankGradients<Real>& to,
                          int threads);

// Causal convolution of each channel (convolution.cpp): y[t] = bias + sum_k weight[k] x[t - K + 1 + k]. weight (K, C), bias (C,),
// window (B, K - 1, C): the inputs before the first; last is the window after each row's end.
template <class Real>
struct ConvolutionInputs {
  Dims n;
  int64_t K;
  Rows<Real> x;
  const Real *weight, *bias, *window;
  const int64_t* lengths;
  const bool* reset;
  ELMAN_FIELDS(n, K, x, weight, bias, window, lengths, reset)
};
template <class Real>
struct ConvolutionOutputs {
  Real *y, *last;
  ELMAN_FIELDS(y, last)
};
template <class Real>
using Convolution = void(const ConvolutionInputs<Real>& in, const ConvolutionOutputs<Real>& out, int threads);

// The gradients of weight and bias are given for each row, (B, K, C) and (B, C).
template <class Real>
struct ConvolutionArriving {
  Rows<Real> gy;
  const Real* glast;
  ELMAN_FIELDS(gy, glast)
};
template <class Real>
struct ConvolutionGradients {
  Real* gx;
  double *gweight, *gbias;
  Real* gwindow;
  ELMAN_FIELDS(gx, gweight, gbias, gwindow)
};
template <class Real>
using ConvolutionBack = void(const ConvolutionInputs<Real>& in, const ConvolutionArriving<Real>& arriving,
                             const ConvolutionGradients<Real>& to, int threads);

// Numbers for each of `count` heads, `width` of each side by side, (B, T, count, width): those of head h of H are number
// h / (H / count). None where data is null.
template <class Real>
struct Heads {
  const Real* data;
  int64_t row, time, count, width;
  ELMAN_FIELDS(data, row, time, count, width)
};

// Matrix states (matrix.cpp), K x V for each of H heads: S[t] = diag(a) S[t-1] + k v^T, y[t] = S[t]^T q; with b,
// m = (a * k)^T S[t-1] and b (v - m) in place of v; with alpha and beta, m = alpha^T S[t-1] and beta m^T in addition.
// q, k, alpha, beta (B, T, heads, K), a the same or one a head, or none; v (B, T, H, V), b (B, T, H), S0 (B, H, K, V).
template <class Real>
struct MatrixInputs {
  int64_t B, T, H, K, V, every;  // the state is saved after every so many steps
  Heads<Real> q, k, v, a, b, alpha, beta;
  const Real* S0;
  const int64_t* lengths;
  const bool* reset;
  ELMAN_FIELDS(B, T, H, K, V, every, q, k, v, a, b, alpha, beta, S0, lengths, reset)
};
// y (B, T, H, V) and last (B, H, K, V). saved, if not null, has room for a state each `every` steps: (B, T, R),
// R * every >= H * K * V; m (B, T, H, V) may be null too, and is not written without a correction.
template <class Real>
struct MatrixOutputs {
  Real *y, *last, *saved, *m;
  ELMAN_FIELDS(y, last, saved, m)
};
template <class Real>
using MatrixScan = void(const MatrixInputs<Real>& in, const MatrixOutputs<Real>& out, int threads);

// gy (B, T, H, V). Each gradient is as large as what it belongs to, and null where that is not there.
template <class Real>
struct MatrixArriving {
  const Real *saved, *m;
  Heads<Real> gy;
  const Real* glast;
  ELMAN_FIELDS(saved, m, gy, glast)
};
template <class Real>
struct MatrixGradients {
  Real *gq, *gk, *gv, *ga, *gb, *galpha, *gbeta, *gS0;
  ELMAN_FIELDS(gq, gk, gv, ga, gb, galpha, gbeta, gS0)
};
template <class Real>
using MatrixScanBack = void(const MatrixInputs<Real>& in, const MatrixArriving<Real>& arriving, const MatrixGradients<Real>& to,
                            int threads);

}  // namespace elman
