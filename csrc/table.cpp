// The table of one instruction set.
#include <iterator>

#include "gated.h"
#include "kernels.h"

namespace elman::ELMAN_NS {

Reverse reverse;
Philox philox;
StudentT student_t;
Digest digest;
#define ELMAN_KERNEL(Type, name) \
  template <class Real>          \
  Type<Real> name;
ELMAN_KERNELS(ELMAN_KERNEL)
#undef ELMAN_KERNEL
#define ELMAN_OPERATION(Type, name) \
  template <class Real>             \
  Append<Real, Type<Real>> append;
ELMAN_OPERATIONS(ELMAN_OPERATION)
#undef ELMAN_OPERATION

template <class Real>
constexpr Table<Real> table() {
  Table<Real> t{};
#define ELMAN_KERNEL(Type, name) t.name = name<Real>;
  ELMAN_KERNELS(ELMAN_KERNEL)
#undef ELMAN_KERNEL
#define ELMAN_OPERATION(Type, name) t.append_##name = append<Real>;
  ELMAN_OPERATIONS(ELMAN_OPERATION)
#undef ELMAN_OPERATION
  return t;
}

constexpr GatedKind gated_kinds[] = {
#define ELMAN_KIND(name, Cell, phi) described<Cell>(#name, Kind::name),
    ELMAN_GATED_KINDS(ELMAN_KIND)
#undef ELMAN_KIND
};

// Constants, all of it: code that ran when the module is loaded could have instructions that the machine does not know.
constexpr Kernels all{table<float>(), table<double>(), reverse, philox, student_t, digest, gated_kinds, std::size(gated_kinds)};

extern const Kernels kernels;
const Kernels kernels = all;

}  // namespace elman::ELMAN_NS
