// Which instruction set: detected once, at import; ELMAN_ISA forces one.
#include <pthread.h>

#include <stdexcept>
#include <string>

#include "kernels.h"
#include "tape.h"

// A build for one machine alone (ELMAN_SANITIZE) says so in the place of "baseline".
#ifndef ELMAN_BASELINE
#define ELMAN_BASELINE "baseline"
#endif

namespace elman {

bool forked = false;

namespace baseline {
extern const Kernels kernels;
RunTape run_tape;
}  // namespace baseline
#ifdef ELMAN_X86
namespace avx2 {
extern const Kernels kernels;
RunTape run_tape;
}  // namespace avx2
namespace avx512 {
extern const Kernels kernels;
RunTape run_tape;
}  // namespace avx512
#endif

namespace {

struct Variant {
  const char* name;
  const Kernels* table;
  RunTape* tape;
};

Variant found[3];
const char* names[4] = {};
int count = 0;
const Variant* chosen = nullptr;

void add(const char* name, const Kernels& table, RunTape* tape) {
  found[count] = {name, &table, tape};
  names[count++] = name;
}

void detect() {
  if (count > 0) return;
  pthread_atfork(nullptr, nullptr, [] { forked = true; });
  add(ELMAN_BASELINE, baseline::kernels, baseline::run_tape);
#ifdef ELMAN_X86
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (has_avx2) add("avx2", avx2::kernels, avx2::run_tape);
  if (has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    add("avx512", avx512::kernels, avx512::run_tape);
#endif
}

}  // namespace

void choose(const char* name) {
  detect();
  const std::string wanted = name;
  if (wanted.empty()) {
    chosen = &found[count - 1];
    return;
  }
  std::string accepted;
  for (int i = 0; i < count; ++i) {
    if (wanted == found[i].name) {
      chosen = &found[i];
      return;
    }
    accepted += (i ? ", " : "") + std::string(found[i].name);
  }
  throw std::invalid_argument("ELMAN_ISA is '" + wanted + "', but this machine runs only: " + accepted +
                              ". Set it to one of these, or unset it to have the fastest.");
}

const Kernels& kernels() { return *chosen->table; }
RunTape* run_tape() { return chosen->tape; }
const char* isa() { return chosen->name; }
const char* const* isas() { return names; }

}  // namespace elman
