// The table of one instruction set.
#include "kernels.h"

namespace elman::ELMAN_NS {

template <class T> LinearScan<T> linear_scan;
template <class T> LinearScanBack<T> linear_scan_back;
template <class T> LinearScan<T> complex_scan;
template <class T> LinearScanBack<T> complex_scan_back;
template <class T> SelectiveScan<T> selective_scan;
template <class T> SelectiveScanBack<T> selective_scan_back;
template <class T> BankScan<T> bank_scan;
template <class T> BankScanBack<T> bank_scan_back;
template <class T> Convolution<T> convolution;
template <class T> ConvolutionBack<T> convolution_back;
Reverse reverse;
Philox philox;
template <class T> Linear<T> linear;
template <class T> Gated<T> gated;
template <class T> GatedBack<T> gated_back;
template <class T> Elementwise<T> sigmoid;
template <class T> Elementwise<T> tanh;
template <class T> Elementwise<T> softplus;
template <class T> Elementwise<T> silu;
template <class T> Elementwise<T> log;
template <class T> HmmFilter<T> hmm_filter;
template <class T> HmmFilterBack<T> hmm_filter_back;
template <class T> Viterbi<T> viterbi;
template <class T> Norm<T> norm;
template <class T> NormBack<T> norm_back;
template <class T> NewProgram<T> program;

template <class T>
constexpr Table<T> table{
    linear_scan<T>,
    linear_scan_back<T>,
    complex_scan<T>,
    complex_scan_back<T>,
    selective_scan<T>,
    selective_scan_back<T>,
    bank_scan<T>,
    bank_scan_back<T>,
    convolution<T>,
    convolution_back<T>,
    linear<T>,
    gated<T>,
    gated_back<T>,
    sigmoid<T>,
    tanh<T>,
    softplus<T>,
    silu<T>,
    log<T>,
    hmm_filter<T>,
    hmm_filter_back<T>,
    viterbi<T>,
    norm<T>,
    norm_back<T>,
    program<T>,
};

extern const Kernels kernels;
const Kernels kernels{table<float>, table<double>, reverse, philox};

}  // namespace elman::ELMAN_NS
