// A symbol for each row of logits.
#include "choice.h"

#include "kernels.h"

namespace elman::ELMAN_NS {

template <class Real>
void choose_symbols(const Choice& choice, int64_t B, int64_t V, const Real* logits, const bool* seen, const double* u,
                    int64_t* symbols) {
  check_banned(choice, V);
  Chooser chooser(choice, V);
  for (int64_t b = 0; b < B; ++b) symbols[b] = chooser(logits + b * V, seen + b * V, u[b]);
}

template ChooseSymbols<float> choose_symbols<float>;
template ChooseSymbols<double> choose_symbols<double>;

}  // namespace elman::ELMAN_NS
