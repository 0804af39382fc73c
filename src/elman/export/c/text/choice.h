/* How a symbol is chosen, as in elman.decoding.Sampling: 1, 1, 1, 0 chooses by the probabilities as they are. */
typedef struct {
  double temperature, top_p, repetition_penalty;
  int32_t top_k, banned_count;
  const int32_t *banned;
} ${name}_choice;

#define ${UPPER}_CHOICE_ROOM $room /* doubles that a choice needs for itself */

/* The uniform number that Python draws for this seed and draw. */
double ${name}_uniform(int64_t seed, int64_t number);
/* The symbol that Python chooses by these logits and this number; `seen` may be null without a penalty. */
int32_t ${name}_choose(const ${name}_choice *how, const float *logits, const unsigned char *seen, double u, double *room);
