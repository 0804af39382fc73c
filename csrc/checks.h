// What would make a kernel read or write where it must not, refused before it runs. For bind.cpp.
#pragma once

#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels.h"

namespace elman {

// A length past the end would be read and written past the end.
inline void check_lengths(const int64_t* lengths, int64_t B, int64_t T) {
  for (int64_t i = 0; i < B; ++i)
    if (lengths[i] < 0 || lengths[i] > T)
      throw std::invalid_argument("native kernel: lengths[" + std::to_string(i) + "] is " + std::to_string(lengths[i]) +
                                  ", but must be in [0, " + std::to_string(T) + "], the number of time steps.");
}

template <class Struct, class = void> constexpr bool has_lengths = false;
template <class Struct> constexpr bool has_lengths<Struct, std::void_t<decltype(Struct::lengths)>> = true;
template <class Struct, class = void> constexpr bool has_dims = false;
template <class Struct> constexpr bool has_dims<Struct, std::void_t<decltype(Struct::n)>> = true;

template <class Struct>
void check(const Struct& s) {
  if constexpr (has_dims<Struct>) check_lengths(s.lengths, s.n.B, s.n.T);
  else if constexpr (has_lengths<Struct>) check_lengths(s.lengths, s.B, s.T);
}
template <class Struct>
void check(const Pair<Struct>& pair) {
  check(pair.first);
  check(pair.second);
}
template <class Real>
void check(const Memory<Real>& memory) {
  check_lengths(memory.lengths, memory.B, memory.S);
}
template <class Real>
void check(const AttendInputs<Real>& in) {
  check(in.memory);
}
template <class Real>
void check(const AttendOperation<Real>& operation) {
  check(operation.memory);
}
template <class Real>
void check(const AttendedInputs<Real>& in) {
  check_lengths(in.lengths, in.B, in.T);
  check(in.memory);
}

// The logit of a symbol that is not there would be read.
template <class Real>
void check(const SoftmaxInputs<Real>& in) {
  for (int64_t m = 0; m < in.M; ++m)
    if (in.symbols[m] < 0 || in.symbols[m] >= in.V)
      throw std::invalid_argument("native kernel: symbols[" + std::to_string(m) + "] is " + std::to_string(in.symbols[m]) +
                                  ", but must be in [0, " + std::to_string(in.V) + "), the symbols that there are.");
}

// A row that is not there, or not computed yet, would be read.
template <class Real>
void check(const GatheredInputs<Real>& in) {
  const int64_t N = in.N, levels = in.levels, P = in.P, M = in.M;
  const int64_t *level = in.level, *before = in.before, *first = in.first, *source = in.source, *group = in.group;
  const auto wrong = [](const char* what, int64_t row) {
    throw std::invalid_argument("native kernel: row " + std::to_string(row) + " of a gathered loop " + what);
  };
  if (level[0] < 0 || level[levels] != N) wrong("is in no level.", level[levels]);
  for (int64_t l = 0; l < levels; ++l)
    if (level[l + 1] < level[l]) wrong("is in two levels.", level[l + 1]);
  if (first && first[level[0]] != 0) wrong("is given and gathers.", 0);
  std::vector<bool> read(M, false);
  for (int64_t l = 0; l < levels; ++l) {
    for (int64_t n = level[l]; n < level[l + 1]; ++n) {
      const int64_t begin = first ? first[n] : n * P, end = first ? first[n + 1] : begin + P;
      if (end < begin) wrong("gathers less than nothing.", n);
      int64_t found = 0;
      for (int64_t e = begin; e < end; ++e) {
        if (before[e] < (first ? 0 : -1) || before[e] >= level[l])
          wrong("gathers from a row that is not in an earlier level.", n);
        if (group && before[e] >= 0 && group[before[e]] != group[n]) wrong("gathers from another group.", n);
        found += before[e] >= 0;
      }
      if ((found > 0) != (l > 0)) wrong("gathers something in the first level, or nothing in a later one.", n);
      if (group && (group[n] < 0 || (n > level[l] && group[n] < group[n - 1]))) wrong("is out of the order of the groups.", n);
      const int64_t m = source ? source[n] : n - level[0];
      if (m >= M || m < -1 || (m >= 0 && read[m])) wrong("reads a row of u that is not there, or that another one reads.", n);
      if (m >= 0) read[m] = true;
    }
  }
}

}  // namespace elman
