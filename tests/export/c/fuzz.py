"""libFuzzer over states and inputs of every cell and word in C: python tests/export/c/fuzz.py SECONDS [FOLDER]

What it finds it leaves in FOLDER, by default build/fuzz. It needs clang with its sanitizers;
tests/export/c/test_source.py has a short version of it, which gcc compiles.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from in_c import FLAGS, everything, together

TARGET = """
#include <stdlib.h>
static float x[256], y[4096];
static const unsigned char *next;
static size_t left;
/* What there is of the data, and zeros behind it. */
static void take(void *to, size_t bytes) {
  const size_t have = bytes < left ? bytes : left;
  memset(to, 0, bytes);
  if (have) memcpy(to, next, have);
  next += have, left -= have;
}
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size) {
  unsigned char which = 0;
  void *s;
  next = data, left = size;
  take(&which, 1);
  switch (which %% %d) {
%s
  }
  return 0;
}
"""
STEPS = """    case {i}:
      s = malloc({n}_state_bytes() + 1);
      take(s, {n}_state_bytes());
      do take(x, 4 * {input}), {n}_step(s, x, y); while (left);
      free(s);
      break;"""
CHOICES = """    case {i}: {{
      static unsigned char seen[{output}];
      static double room[{upper}_CHOICE_ROOM];
      {n}_choice how;
      int32_t banned[2], symbol = 0;
      take(&how, sizeof how), take(banned, sizeof banned), take(seen, sizeof seen);
      how.banned = banned, how.banned_count = how.banned_count & 1;
      s = malloc({n}_state_bytes() + 1);
      take(s, {n}_state_bytes());
      do {{
        double u;
        take(&symbol, 4), {n}_step(s, symbol, y), take(&u, sizeof u), take(y, left > 100 ? 4 * {output} : 0);
        symbol = {n}_choose(&how, y, seen, u, room);
        if (symbol < 0 || symbol >= {output}) abort();
      }} while (left);
      free(s);
      break;
    }}"""


def main(seconds: int, folder: Path) -> int:
    """Compile and run: 0 if nothing was found."""
    folder.mkdir(parents=True, exist_ok=True)
    modules = everything()
    cases = "\n".join(
        (CHOICES if module.chooses else STEPS).format(
            i=i, n=module.name, upper=module.name.upper(), input=module.program.given, output=module.y.width
        )
        for i, module in enumerate(modules)
    )
    (folder / "fuzz.c").write_text(together(modules, TARGET % (len(modules), cases)))
    sanitizers = "-fsanitize=fuzzer,address,undefined,float-cast-overflow"
    program = folder / "fuzz"
    command = ["clang", *FLAGS, "-g1", sanitizers, "-fno-sanitize-recover=all", folder / "fuzz.c", "-o", program, "-lm"]
    subprocess.run(command, check=True)
    limits = [f"-max_total_time={seconds}", "-max_len=4096", "-print_final_stats=1", "-verbosity=0"]
    (folder / "corpus").mkdir(exist_ok=True)
    return subprocess.run([program, *limits, f"-artifact_prefix={folder}/", folder / "corpus"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else "build/fuzz")))
