// The table of one instruction set.
#include "kernels.h"

namespace elman::ELMAN_NS {

template <class T> LinearScan<T> linear_scan;
template <class T> LinearScanBack<T> linear_scan_back;

template <class T>
constexpr Table<T> table{
    linear_scan<T>,
    linear_scan_back<T>,
};

extern const Kernels kernels;
const Kernels kernels{table<float>, table<double>};

}  // namespace elman::ELMAN_NS
