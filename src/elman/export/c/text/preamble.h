/* Sums over the width of a row run in LANES lanes, as a Stream has them: 8 with AVX2, 16 with AVX-512, 4 on ARM and
   without FMA. Only FMA may fuse a product with a sum: compile with -ffp-contract=off, and never with -ffast-math. */
#ifdef __FAST_MATH__
#error "-ffast-math changes the numbers"
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif
#ifndef NO_FMA
#if defined(__wasm__)
#define NO_FMA 1
#else
#define NO_FMA 0
#endif
#endif
#ifndef LANES
#if NO_FMA
#define LANES 4
#else
#define LANES 8
#endif
#endif
