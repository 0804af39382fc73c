/* make check: whether $name.c makes of some inputs, bit for bit, what a Stream made of them in Python ($isa). */
#include "$name.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const $kind inputs[$steps * $each] = {
$inputs
};
static const uint32_t expected[$steps * $output] = {
$outputs
};
static const uint32_t after[$words] = {
$state
};
static float state[$words], y[$steps * $output];

static void compare(const char *what, const float *made, const uint32_t *bits, int count) {
  int i, differ = 0;
  double most = 0;
  for (i = 0; i < count; ++i) {
    float wanted;
    memcpy(&wanted, bits + i, sizeof wanted);
    if (memcmp(made + i, bits + i, sizeof wanted) != 0) ++differ, most = fmax(most, fabs((double)made[i] - (double)wanted));
  }
  if (differ == 0) printf("%s: %d numbers, all of them the bits of Python\n", what, count);
  else printf("%s: %d of %d numbers differ, by at most %g\n", what, differ, count, most);
}

int main(void) {
  ${name}_reset(state);
  ${name}_scan(state, inputs, $steps, y);
  compare("$name, $steps steps", y, expected, $steps * $output);
  compare("$name, the state after them", state, after, $numbers);
  return memcmp(y, expected, sizeof y) != 0 || memcmp(state, after, $numbers * sizeof *state) != 0;
}
