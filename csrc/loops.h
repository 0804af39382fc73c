// What the gated loops read and write: plain, with attention inside, and with a state that is gathered; and attention itself.
#pragma once

#include "fields.h"

namespace elman {

// A kind of gated cell: what a caller must know of it. gated.h has the cells and the list.
struct GatedKind {
  const char* name;
  int number;    // in the list
  int gates;     // sums per unit
  int saves;     // values per unit and step that the backward pass needs
  int states;    // 1 (h) or 2 (h and c)
  bool matrix;   // whether it has a W
  bool attends;  // whether attended.cpp has it
};

// What an option adds to a gated loop; null where it is off.
template <class Real>
struct GatedOptions {
  Real* peephole;         // (gates - 1, H): of the LSTM's i, f and o; of i and o where they are coupled
  Real* P;                // (R, H): h is P times what it would have been, and R wide
  Real* gain;             // (gates * H): W h' is normalised and multiplied by it; the GRU's candidate by itself
  Real* gain_U;           // (gates * H): so is U x, before b is added; only beside gain
  Real *gain_c, *bias_c;  // (H): the LSTM's c is normalised on its way to h
  ELMAN_FIELDS(peephole, P, gain, gain_U, gain_c, bias_c)
};

// The weights of a gated cell. Inputs are projected by U (gates * H, D) and b (gates * H), or, where U is null, are the
// projections themselves, D = gates * H. w is (gates * H, R), gates stacked, or null; R is H unless there is a P. extra has
// extra_size numbers, one or one per unit, or is null.
template <class Real>
struct GatedWeights {
  int kind;  // its number in the list
  int64_t D, H, R;
  const Real *U, *b, *w, *extra;
  int64_t extra_size;
  GatedOptions<const Real> options;
  ELMAN_FIELDS(kind, D, H, R, U, b, w, extra, extra_size, options)
};

// One gated loop: x (B, T, D), h0 (B, R), c0 (B, H) or null for cells of one state. `every` is T without checkpoints. Backwards,
// each row is read from its last valid step to its first, and its episodes likewise: h0 is the state after the row's end.
template <class Real>
struct GatedInputs {
  GatedWeights<Real> weights;
  int64_t B, T, every;
  Rows<Real> x;
  const Real *h0, *c0;
  const int64_t* lengths;
  const bool* reset;
  bool backwards;
  ELMAN_FIELDS(weights, B, T, every, x, h0, c0, lengths, reset, backwards)
};
// y (B, T, R) may lie among other columns: its steps are ldy apart. One of three may be there for the backward pass, the others
// null: saved gets what it needs, halves the same in bfloat16, checkpoints the state before steps 0, every, 2 every, ... instead.
// gated_layout.h says how they lie.
template <class Real>
struct GatedOutputs {
  Real *y, *h, *c, *saved;
  uint16_t* halves;
  Real* checkpoints;
  int64_t ldy;
  ELMAN_FIELDS(y, h, c, saved, halves, checkpoints, ldy)
};
template <class Real>
using Gated = void(const GatedInputs<Real>& inputs, const GatedOutputs<Real>& outputs, int threads);

// What its backward pass starts from: outputs of the loop, and gradients that arrive at y and at the last states. One of saved,
// halves and checkpoints is not null; what lies between the checkpoints is computed again.
template <class Real>
struct GatedArriving {
  const Real *y, *saved;
  const uint16_t* halves;
  const Real* checkpoints;
  int64_t ldy;
  Rows<Real> gy;
  const Real *gh, *gc;
  ELMAN_FIELDS(y, saved, halves, checkpoints, ldy, gy, gh, gc)
};
// Any of gx, gU, gb, gw, gextra may be null: it is not wanted then. Those of the options come all or none.
template <class Real>
struct GatedGradients {
  Real *gx, *gU, *gb, *gw, *gextra, *gh0, *gc0;
  GatedOptions<Real> options;
  ELMAN_FIELDS(gx, gU, gb, gw, gextra, gh0, gc0, options)
};
template <class Real>
using GatedBack = void(const GatedInputs<Real>& inputs, const GatedArriving<Real>& arriving,
                       const GatedGradients<Real>& gradients, int threads);

// Two loops over the same x, at once where each has a thread. Backward, the second has no gx: its share is added to the first's.
template <class Struct>
struct Pair {
  Struct first, second;
  ELMAN_FIELDS(first, second)
};
template <class Real>
using GatedPair = void(const Pair<GatedInputs<Real>>& inputs, const Pair<GatedOutputs<Real>>& outputs, int threads);
template <class Real>
using GatedPairBack = void(const Pair<GatedInputs<Real>>& inputs, const Pair<GatedArriving<Real>>& arriving,
                           const Pair<GatedGradients<Real>>& gradients, int threads);

// What rows attend to: keys (B, S, A) and values (B, S, M), lengths (B) of them. v (A) is there where attention is additive.
template <class Real>
struct Memory {
  int64_t B, S, A, M;
  const Real *keys, *values, *v;
  const int64_t* lengths;
  ELMAN_FIELDS(B, S, A, M, keys, values, v, lengths)
};

// Attention (attention.h): e[j] = query . keys[j], or v . tanh(query + keys[j]) where v is not null; weights = softmax of e over
// j < lengths; context = sum of weights[j] values[j]. query (B, T, A).
template <class Real>
struct AttendInputs {
  Memory<Real> memory;
  int64_t T;
  const Real* query;
  ELMAN_FIELDS(memory, T, query)
};
// context (B, T, M), weights (B, T, S): zero past the length.
template <class Real>
struct AttendOutputs {
  Real *context, *weights;
  ELMAN_FIELDS(context, weights)
};
template <class Real>
using Attend = void(const AttendInputs<Real>& in, const AttendOutputs<Real>& out, int threads);

// Its gradients. What arrives at the weights may be null. The caller gives zeros, to which gkeys (B, S, A), gvalues (B, S, M) and
// gv (B, A), a row each, or null, are added.
template <class Real>
struct AttendArriving {
  const Real *weights, *gcontext, *gweights;
  ELMAN_FIELDS(weights, gcontext, gweights)
};
template <class Real>
struct AttendGradients {
  Real *gquery, *gkeys, *gvalues, *gv;
  ELMAN_FIELDS(gquery, gkeys, gvalues, gv)
};
template <class Real>
using AttendBack = void(const AttendInputs<Real>& in, const AttendArriving<Real>& arriving, const AttendGradients<Real>& to,
                        int threads);

// A gated loop with attention inside (attended.cpp). u (B, T, gates * H) is what the inputs say to the gates. To that the loop adds
// U f, f being D wide: where O is null the context, found by the query Q h' (A) before the step; else the output of the step
// before, y = tanh(O [h, context] + o) (Z = D wide), its query h itself (A = H). What an array of the other kind would hold is null.
template <class Real>
struct AttendedInputs {
  GatedWeights<Real> weights;
  int64_t B, T;
  Rows<Real> u;
  const Real *h0, *c0, *y0;
  const int64_t* lengths;
  const bool* reset;
  Memory<Real> memory;
  const Real *Q, *O, *o;
  ELMAN_FIELDS(weights, B, T, u, h0, c0, y0, lengths, reset, memory, Q, O, o)
};
// h (B, T, H), context (B, T, M), y (B, T, Z), query (B, T, A) and weights (B, T, S) are zeros when they are given: nothing is
// written past the lengths. saved is as in GatedOutputs.
template <class Real>
struct AttendedOutputs {
  Real *h, *context, *y, *query, *weights, *last_h, *last_c, *last_y, *saved;
  ELMAN_FIELDS(h, context, y, query, weights, last_h, last_c, last_y, saved)
};
template <class Real>
using Attended = void(const AttendedInputs<Real>& in, const AttendedOutputs<Real>& out, int threads);

// Its backward pass leaves products over all steps to the caller: it gives the gradients of u and of the gates' sums over h',
// (B, T, gates * H), of the query Q h' (B, T, A) and of the argument of y's tanh (B, T, Z). All are zeros when they are given.
template <class Real>
struct AttendedArriving {
  const Real *h, *y, *query, *weights, *saved;
  Rows<Real> gh, gcontext, gy;
  const Real *glast_h, *glast_c, *glast_y;
  ELMAN_FIELDS(h, y, query, weights, saved, gh, gcontext, gy, glast_h, glast_c, glast_y)
};
template <class Real>
struct AttendedGradients {
  Real *gu, *gsum, *gquery, *gpre, *gkeys, *gvalues, *gv, *gh0, *gc0, *gy0;
  ELMAN_FIELDS(gu, gsum, gquery, gpre, gkeys, gvalues, gv, gh0, gc0, gy0)
};
template <class Real>
using AttendedBack = void(const AttendedInputs<Real>& in, const AttendedArriving<Real>& arriving,
                          const AttendedGradients<Real>& to, int threads);

// A gated loop whose state before is gathered from other rows (gathered.cpp): N rows, level l being the rows level[l] to
// level[l + 1], in front of them rows that are given, h0 and c0 (level[0], H). A row gathers the states of P places of `before`
// (N, P), -1 for zeros; or, unless first (N + 1) is null, of before[first[n]] to before[first[n + 1]], which are added up. Rows of
// the first level gather nothing. Sums begin with row source[n] of u (M, A * H), or n - level[0] where source is null; gates from
// A on, and rows whose source is -1, with b (G * H). w is (G * H, P * H); G is 3 + F: i, g, o and a forget gate for the first F
// places; or 1 where F is 0 and there is no c. Rows gather within their group, ascending in a level, or null.
template <class Real>
struct GatheredInputs {
  int64_t N, levels, M, A, H, P, F;
  const Real *u, *w, *b, *h0, *c0;
  const int64_t *level, *before, *first, *source, *group;
  ELMAN_FIELDS(N, levels, M, A, H, P, F, u, w, b, h0, c0, level, before, first, source, group)
};
// h and c (N, H). saved (N - level[0], gathered_saves, H) and forgets (E, H), of every state that is added up, may be null.
template <class Real>
struct GatheredOutputs {
  Real *h, *c, *saved, *forgets;
  ELMAN_FIELDS(h, c, saved, forgets)
};
template <class Real>
using Gathered = void(const GatheredInputs<Real>& in, const GatheredOutputs<Real>& out, int threads);

// Its backward pass leaves products over all rows to the caller: it gives the gradients of u, of the sums (N - level[0], G * H) and
// of the sums of forgets (E, H). gh and gc (N, H) hold what arrives, to which rows add that of the rows that they gathered.
template <class Real>
struct GatheredArriving {
  const Real *h, *c, *saved, *forgets;
  ELMAN_FIELDS(h, c, saved, forgets)
};
template <class Real>
struct GatheredGradients {
  Real *gu, *gsum, *gforgets, *gh, *gc;
  ELMAN_FIELDS(gu, gsum, gforgets, gh, gc)
};
template <class Real>
using GatheredBack = void(const GatheredInputs<Real>& in, const GatheredArriving<Real>& arriving,
                          const GatheredGradients<Real>& to, int threads);

}  // namespace elman
