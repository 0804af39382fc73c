/* $about

   The state is $state_bytes bytes of yours, aligned as a float is: those of elman.state.to_rows, so that a row saved by
   Python goes on here, and back. A step allocates nothing, has no variables of its own, and takes about $stack bytes of
   stack. $takes y may not overlap with anything. */
#ifndef ${UPPER}_H
#define ${UPPER}_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ${UPPER}_FINGERPRINT "$fingerprint"
#define ${UPPER}_$IN $input
#define ${UPPER}_OUTPUT $output
#define ${UPPER}_STATE_BYTES $state_bytes

size_t ${name}_state_bytes(void);
void ${name}_reset(void *state);
$results ${name}_step(void *state, $argument, float *y);
$results ${name}_scan(void *state, $arguments, size_t steps, float *y);
$choice
#ifdef __cplusplus
}
#endif

#endif
