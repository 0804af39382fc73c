static inline double double_of(uint64_t bits) {
  union {
    double number;
    uint64_t bits;
  } b;
  b.bits = bits;
  return b.number;
}

static inline uint64_t bits_of_double(double x) {
  union {
    double number;
    uint64_t bits;
  } b;
  b.number = x;
  return b.bits;
}

static inline double double_power_of_two(uint64_t n) { return double_of((n + 1023u) << 52); }

/* e^x in double, for x <= 0 */
static double double_decay(double x) {
  static const double q[] = {0.5, 0.16666666666666671, 0.041666666666666664, 0.0083333333333261393, 0.0013888888888885266,
                             0.00019841269874838988, 2.4801587322981795e-05, 2.7557255571362385e-06, 2.7557275831269738e-07,
                             2.5105226897097635e-08, 2.0913890994369145e-09};
  const double shift = 6755399441055744.0, from = x < -746.0 ? -746.0 : x;
  const double shifted = FMA_DOUBLE(from, 1.4426950408889634, shift), whole = shifted - shift;
  const uint64_t n = bits_of_double(shifted) - bits_of_double(shift), half = n >> 1 | (n & 0x8000000000000000u);
  const double a = double_power_of_two(half);
  double r = FMA_DOUBLE(whole, -0.69314718036912382, from), sum = q[10];
  int i;
  r = FMA_DOUBLE(whole, -1.9082149292705877e-10, r);
  for (i = 9; i >= 0; --i) sum = FMA_DOUBLE(sum, r, q[i]);
  return FMA_DOUBLE(FMA_DOUBLE(sum, r * r, r), a, a) * double_power_of_two(n - half);
}

/* log x in double, for normal x; a unit in the last place or two from that of a mathematical library */
static double double_logarithm(double x) {
  double m = double_of((bits_of_double(x) & 0x000FFFFFFFFFFFFFu) | 0x3FF0000000000000u), f, s, s2, sum, k;
  int i, n = (int)(bits_of_double(x) >> 52) - 1023;
  if (m > 1.4142135623730951) m *= 0.5, ++n;
  f = m - 1.0, s = f / (f + 2.0), s2 = s * s, k = (double)n;
  sum = 2.0 / 23.0;
  for (i = 10; i >= 1; --i) sum = FMA_DOUBLE(sum, s2, 2.0 / (2 * i + 1));
  sum = FMA_DOUBLE(-s, f, s * s2 * sum);
  return FMA_DOUBLE(k, 0.69314718036912382, f + FMA_DOUBLE(k, 1.9082149292705877e-10, sum));
}

/* The first of the largest, or of what is not a number. */
static int32_t most_probable(int32_t V, const double *p) {
  int32_t best = 0, v;
  for (v = 0; v < V && p[best] == p[best]; ++v)
    if (!(p[v] <= p[best])) best = v;
  return best;
}

static void subtract(int32_t V, double x, double *p) {
  int32_t v;
  for (v = 0; v < V; ++v) p[v] -= x;
}

/* p becomes log-probabilities, and those of the symbols seen smaller. */
static void penalise(int32_t V, const unsigned char *seen, double penalty, double *p) {
  double total[LANES / 2] = {0};
  int32_t v;
  int step, l;
  subtract(V, p[most_probable(V, p)], p);
  for (v = 0; v < V; ++v) total[v % (LANES / 2)] += double_decay(p[v]);
  for (step = LANES / 4; step > 0; step /= 2)
    for (l = 0; l < step; ++l) total[l] += total[l + step];
  subtract(V, double_logarithm(total[0]), p);
  for (v = 0; v < V; ++v)
    if (seen[v]) p[v] *= penalty;
}

/* Where the running sum of count weights reaches least; by their order, where there is one. */
static int32_t reached(int32_t count, const double *p, const int32_t *order, double least) {
  double sum = 0.0;
  int32_t i;
  for (i = 0; i < count; ++i) {
    sum = i ? sum + p[order ? order[i] : i] : p[order ? order[i] : i];
    if (sum >= least) return i;
  }
  return 0; /* of what is not a number */
}

static double sum_of(int32_t count, const double *p, const int32_t *order) {
  double sum = p[order ? order[0] : 0];
  int32_t i;
  for (i = 1; i < count; ++i) sum += p[order ? order[i] : i];
  return sum;
}

/* Whether symbol a is chosen before b: by their weights, of equal ones the first. */
static int before(const double *p, int32_t a, int32_t b) { return p[a] != p[b] ? p[a] > p[b] : a < b; }

static void sift(int32_t count, const double *p, int32_t *order, int32_t at) {
  int32_t child, kept = order[at];
  while ((child = 2 * at + 1) < count) {
    if (child + 1 < count && before(p, order[child], order[child + 1])) ++child;
    if (!before(p, kept, order[child])) break;
    order[at] = order[child];
    at = child;
  }
  order[at] = kept;
}

/* All symbols, the most probable first: a heap, which needs neither recursion nor memory. */
static void sort(int32_t V, const double *p, int32_t *order) {
  int32_t i, last;
  for (i = 0; i < V; ++i) order[i] = i;
  for (i = V / 2 - 1; i >= 0; --i) sift(V, p, order, i);
  for (i = V - 1; i > 0; --i) {
    last = order[0], order[0] = order[i], order[i] = last;
    sift(i, p, order, 0);
  }
}

/* Among the k most probable symbols the first that have top_p together. */
static int32_t among_the_top(int32_t V, int32_t k, double top_p, double u, const double *p, int32_t *order) {
  double all;
  if (p[most_probable(V, p)] != 1.0) return 0; /* not a number, or nothing to choose */
  sort(V, p, order);
  all = sum_of(k, p, order);
  if (top_p < 1.0) all = sum_of(reached(k, p, order, top_p * all) + 1, p, order);
  return order[reached(k, p, order, u * all)];
}

double NAME_uniform(int64_t seed, int64_t number) {
  uint64_t c0 = 0, c1 = 0, c2 = (uint64_t)number & 0xFFFFFFFFu, c3 = (uint64_t)number >> 32;
  uint64_t k0 = (uint64_t)seed & 0xFFFFFFFFu, k1 = (uint64_t)seed >> 32;
  int round;
  for (round = 0; round < 10; ++round) {
    const uint64_t p0 = 0xD2511F53u * c0, p1 = 0xCD9E8D57u * c2;
    c0 = p1 >> 32 ^ c1 ^ k0, c1 = p1 & 0xFFFFFFFFu;
    c2 = p0 >> 32 ^ c3 ^ k1, c3 = p0 & 0xFFFFFFFFu;
    k0 = (k0 + 0x9E3779B9u) & 0xFFFFFFFFu, k1 = (k1 + 0xBB67AE85u) & 0xFFFFFFFFu;
  }
  return ((double)((c0 | c1 << 32) >> 12) + 0.5) * 2.220446049250313e-16;
}

int32_t NAME_choose(const NAME_choice *how, const float *logits, const unsigned char *seen, double u, double *room) {
  const int32_t V = UPPER_OUTPUT;
  const int some = how->top_k > 0 && how->top_k < V;
  double *const p = room, largest;
  int32_t v;
  for (v = 0; v < V; ++v) p[v] = (double)logits[v];
  for (v = 0; v < how->banned_count; ++v)
    if (how->banned[v] >= 0 && how->banned[v] < V) p[how->banned[v]] = -INFINITY;
  if (seen && how->repetition_penalty != 1.0) penalise(V, seen, how->repetition_penalty, p);
  if (how->temperature == 0.0) return most_probable(V, p);
  largest = p[most_probable(V, p)];
  for (v = 0; v < V; ++v) p[v] = double_decay((p[v] - largest) / how->temperature);
  if (some || how->top_p < 1.0) return among_the_top(V, some ? how->top_k : V, how->top_p, u, p, (int32_t *)(void *)(room + V));
  return reached(V, p, NULL, u * sum_of(V, p, NULL));
}
