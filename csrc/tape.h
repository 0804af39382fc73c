// A tape: operations on small arrays of any number of axes, written down once and run by one call (tape.cpp). What learning online
// does at a step is some hundred of them, each of which would cost Torch more to begin than to compute.
//
// An instruction has axes, an operand a stride along each of them, in elements: 0 where it is broadcast. Operand 0 is what is
// written, side by side unless the instruction is a copy.
#pragma once

#include <cstdint>
#include <vector>

namespace elman {

// Of one operand; of two; of three. Comparisons and `isnan` write booleans. In the last line each has `more` of its own:
//   cast: the type that is read            sum, largest: how many of the last axes go
//   linear: arrays, M, N, K (operands y, x, W and, if there is one, b)
//   take, gather, scatter: rows, how many there are to choose from, how many are chosen, columns (y, x, places), whether
//     a place below 0 counts from the end
//   trace: B, C, R, W, whether the immediate influence is an outer product (see influence.h)
// clang-format off
#define ELMAN_TAPE_CODES(code)                                                                             \
  code(copy) code(neg) code(conj) code(exp) code(expm1) code(log) code(log1p) code(sqrt) code(sigmoid) code(tanh)      \
  code(softplus) code(relu) code(abs) code(sign) code(sin) code(cos) code(lgamma) code(digamma)            \
  code(isnan) code(no)                                                                                     \
  code(add) code(sub) code(mul) code(div) code(pow) code(maximum) code(minimum) code(both) code(either)    \
  code(eq) code(ne) code(lt) code(le) code(gt) code(ge)                                                    \
  code(where)                                                                                    \
  code(cast) code(sum) code(largest) code(linear) code(take) code(gather) code(scatter) code(trace)
#define ELMAN_TAPE_TYPES(type) type(f32) type(f64) type(c64) type(c128) type(i64) type(u8)
// clang-format on
#define ELMAN_ENTRY(name) name,
enum class TapeCode : int64_t { ELMAN_TAPE_CODES(ELMAN_ENTRY) };
enum class TapeType : int64_t { ELMAN_TAPE_TYPES(ELMAN_ENTRY) };
#undef ELMAN_ENTRY

constexpr int64_t tape_axes = 16;  // of an instruction, at most

struct Tape {
  struct Operand {
    int64_t place, offset;  // 0: memory of the run, 1: constants, then the arrays that are given and those that are made
    std::vector<int64_t> strides;
    bool plain;  // side by side, in the order of the axes
  };
  struct Instruction {
    TapeCode code;
    TapeType type;  // of what is read but for a cast, a place and the condition of a `where`
    int64_t count;  // elements
    std::vector<int64_t> sizes, more;
    std::vector<Operand> operands;
  };
  std::vector<Instruction> instructions;
  std::vector<char> constants;
  int64_t memory, given, made;  // bytes of its own; arrays
};

// Whether it came to its end: not where a place is chosen that is not there.
using RunTape = bool(const Tape& tape, char* const* given, char* const* made, int threads);
RunTape* run_tape();  // of the chosen instruction set (isa.cpp)

}  // namespace elman
