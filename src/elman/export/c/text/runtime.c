typedef union {
  float number;
  uint32_t bits;
} Bits;

/* a * b + c, rounded once; twice where there is no such instruction */
#if NO_FMA
#define FMA(a, b, c) ((a) * (b) + (c))
#define FMA_DOUBLE(a, b, c) ((a) * (b) + (c))
#else
#define FMA(a, b, c) fmaf(a, b, c)
#define FMA_DOUBLE(a, b, c) fma(a, b, c)
#endif

/* Columns of a product whose sums are open at once. */
#define PANEL 32

/* Columns of a matrix state that are stepped at once. */
#define COLUMNS 16

/* Weights of 8 bits of a column that share a scale. */
#define GROUP 64

static inline uint32_t bits_of(float x) {
  Bits b;
  b.number = x;
  return b.bits;
}

static inline float number_of(uint32_t bits) {
  Bits b;
  b.bits = bits;
  return b.number;
}

/* e^x = 2^n e^r,  n = round(x / ln 2),  |r| <= ln 2 / 2,  e^r = 1 + r + r^2 q(r): n, and e^r - 1 */
static inline float reduce(float x, uint32_t *n) {
  const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, kept in the low bits */
  const float shifted = FMA(x, 1.44269504f, shift), whole = shifted - shift;
  float r = FMA(whole, -0.693359375f, x), q = 0.00139262135f;
  r = FMA(whole, 2.12194440e-4f, r);
  q = FMA(q, r, 0.00836320297f);
  q = FMA(q, r, 0.0416665544f);
  q = FMA(q, r, 0.166665768f);
  q = FMA(q, r, 0.5f);
  *n = bits_of(shifted) - bits_of(shift);
  return FMA(q, r * r, r);
}

static inline float power_of_two(uint32_t n) { return number_of((n + 127u) << 23); }

/* e^x for x <= 104; two factors, so that a denormal result is rounded once */
static inline float decay(float x) {
  uint32_t n, half;
  float m, a;
  m = reduce(x < -104.0f ? -104.0f : x, &n);
  half = n >> 1 | (n & 0x80000000u);
  a = power_of_two(half);
  return FMA(m, a, a) * power_of_two(n - half);
}

static inline float exponential(float x) { return decay(x > 104.0f ? 104.0f : x); }

static inline float minus_absolute(float x) { return number_of(bits_of(x) | 0x80000000u); }

/* 1 / (1 + e^-x), or e^x / (1 + e^x) for x < 0 */
static inline float logistic(float x) {
  const float e = decay(minus_absolute(x));
  return (x < 0.0f ? e : 1.0f) / (e + 1.0f);
}

/* tanh |x| = -m / (2 + m), m = e^(-2|x|) - 1 */
static inline float hyperbolic_tangent(float x) {
  float size = minus_absolute(x), e, scale, m, t;
  uint32_t n;
  size = size < -10.0f ? -10.0f : size;
  e = reduce(size + size, &n);
  scale = power_of_two(n);
  m = FMA(scale, e, scale - 1.0f);
  t = m / (m + 2.0f);
  return number_of((bits_of(t) & 0x7FFFFFFFu) | (bits_of(x) & 0x80000000u));
}

/* log(1 + e) for e in [0, 1]: 1 + e = 2^k (1 + f), log(1 + f) = 2 atanh(s), s = f / (2 + f) */
static inline float log_one_plus(float e) {
  const int upper = e > 0.41421356f;
  const float f = upper ? (e - 1.0f) * 0.5f : e, s = f / (f + 2.0f), s2 = s * s;
  float sum = 2.0f / 11.0f, log;
  sum = FMA(sum, s2, 2.0f / 9.0f);
  sum = FMA(sum, s2, 2.0f / 7.0f);
  sum = FMA(sum, s2, 2.0f / 5.0f);
  sum = FMA(sum, s2, 2.0f / 3.0f);
  log = FMA(s * s2, sum, s + s);
  return upper ? log + 0.6931471805599453f : log;
}

static inline float log_one_plus_exp(float x) {
  const float positive = x < 0.0f ? 0.0f : x;
  return positive + log_one_plus(decay(minus_absolute(x)));
}

/* x = 2^n m, m in [sqrt(1/2), sqrt(2)):  log x = n ln 2 + 2 atanh((m - 1) / (m + 1)) */
static inline float logarithm(float x) {
  const int denormal = x < 1.17549435e-38f;
  const uint32_t normal = bits_of(denormal ? x * 8388608.0f : x);
  float m = number_of((normal & 0x007FFFFFu) | 0x3F800000u), f, s, s2, sum, tail, k, log;
  int32_t n = (int32_t)(normal >> 23) - 127 - (denormal ? 23 : 0);
  const int upper = m > 1.4142135623730951f;
  m = upper ? m * 0.5f : m;
  n = upper ? n + 1 : n;
  f = m - 1.0f, s = f / (f + 2.0f), s2 = s * s;
  sum = 2.0f / 11.0f;
  sum = FMA(sum, s2, 2.0f / 9.0f);
  sum = FMA(sum, s2, 2.0f / 7.0f);
  sum = FMA(sum, s2, 2.0f / 5.0f);
  sum = FMA(sum, s2, 2.0f / 3.0f);
  tail = FMA(-s, f, s * s2 * sum);
  k = (float)n;
  log = FMA(k, 0.693359375f, f + FMA(k, -2.12194440e-4f, tail));
  if (x == 0.0f) return -INFINITY;
  if (x == INFINITY) return x;
  return x > 0.0f ? log : NAN;
}

/* The upper 64 bits of a product. */
static inline uint64_t upper_product(uint64_t a, uint64_t b) {
  const uint64_t low = 0xFFFFFFFFu, a0 = a & low, a1 = a >> 32, b0 = b & low, b1 = b >> 32;
  const uint64_t middle = a1 * b0 + (a0 * b0 >> 32);
  return a1 * b1 + (middle >> 32) + ((a0 * b1 + (middle & low)) >> 32);
}

/* x >= 1e6, from a float: x = n pi/2 + high + low, by 192 bits of 2 / pi from where they count; n modulo 4 */
static uint32_t turn_far(double x, double *high, double *low) {
  static const uint64_t two_over_pi[] = {0u, 0xA2F9836E4E441529u, 0xFC2757D1F534DDC0u,
                                         0xDB6295993C439041u, 0xFE5163ABDEBBC561u, 0xB7246E3A424DD2E0u};
  uint64_t bits, word[3], m, middle, top, n;
  int64_t rest;
  double first, tail, sum, lost, a, less;
  int at, i;
  memcpy(&bits, &x, sizeof bits);
  m = (bits & 0xFFFFFFFFFFFFFu) | 0x10000000000000u;
  at = (int)(bits >> 52) - 1075 + 62;
  for (i = 0; i < 3; ++i) {
    const uint64_t *w = two_over_pi + at / 64 + i;
    word[i] = at % 64 ? w[0] << at % 64 | w[1] >> (64 - at % 64) : w[0];
  }
  middle = m * word[1] + upper_product(m, word[2]);
  top = m * word[0] + upper_product(m, word[1]) + (middle < m * word[1]);
  n = (top + ((uint64_t)1 << 61)) >> 62;
  rest = (int64_t)(top - (n << 62));
  first = (double)rest;
  tail = (double)(rest - (int64_t)first) + (double)middle * 5.421010862427522e-20; /* 2^-64 */
  sum = first + tail;
  lost = (first - sum) + tail;
  memcpy(&bits, &sum, sizeof bits);
  bits &= ~(uint64_t)0x7FFFFFFu; /* 26 bits, and 26 of pi/2: their product is exact */
  memcpy(&a, &bits, sizeof a);
  less = a * 3.446300270664977e-27 + ((sum - a) + lost) * (3.406121545623552e-19 + 3.446300270664977e-27);
  *high = a * 3.406121545623552e-19 + less;
  *low = (a * 3.406121545623552e-19 - *high) + less;
  return (uint32_t)n;
}

/* a - b, and what rounding has taken of it added to `lost` */
static inline double minus(double a, double b, double *lost) {
  const double d = a - b, back = d - a;
  *lost += (a - (d - back)) - (b + back);
  return d;
}

/* sin(|x| + ahead pi/2) in double: |x| = n pi/2 + r, sin r = r + r^3 p(r^2), cos r = 1 - r^2/2 + r^4 q(r^2) */
static double sine_of_size(float x, uint32_t ahead) {
  const double shift = 6755399441055744.0; /* 1.5 * 2^52 */
  const double size = x < 0.0f ? -(double)x : (double)x;
  double r, low = 0.0, u, half, upper, p = 1.591810123027412e-10, q = -1.1382614868556325e-11, y;
  uint32_t n;
  if (size >= 1e6 && x - x == 0.0f) {
    n = turn_far(size, &r, &low);
  } else {
    const double shifted = size * 0.63661977236758138 + shift, whole = shifted - shift;
    double high;
    n = whole <= 636620.0 ? (uint32_t)whole : 0u; /* nor of what is not a number */
    r = size - whole * 1.5707963267341256;        /* pi/2 in four parts, the first three of 33 bits */
    r = minus(r, whole * 6.077100506303966e-11, &low);
    r = minus(r, whole * 2.0222662487111665e-21, &low);
    low -= whole * 8.4784276603689e-32;
    high = r + low;
    low = (r - high) + low;
    r = high;
  }
  u = r * r, half = u * 0.5, upper = 1.0 - half;
  p = p * u + -2.5051131455427946e-08;
  p = p * u + 2.755731610068303e-06;
  p = p * u + -0.0001984126983675497;
  p = p * u + 0.008333333333330946;
  p = p * u + -0.16666666666666666;
  q = q * u + 2.0876146024689747e-09;
  q = q * u + -2.7557317270560326e-07;
  q = q * u + 2.4801587298763433e-05;
  q = q * u + -0.0013888888888887395;
  q = q * u + 0.041666666666666664;
  n += ahead;
  y = n & 1u ? upper + (((1.0 - upper) - half) + (u * u * q - r * low)) : r + (r * u * p + low * (1.0 - half));
  return n & 2u ? -y : y;
}

static inline float sine(float x) {
  const float y = (float)sine_of_size(x, 0);
  return number_of(bits_of(y) ^ (bits_of(x) & 0x80000000u));
}

static inline float rectified(float x) { return x < 0.0f ? 0.0f : x; }

/* The sum of all lanes: of halves, of their halves, and so on. */
static float fold(float *lanes) {
  int step, l;
  for (step = LANES / 2; step > 0; step /= 2)
    for (l = 0; l < step; ++l) lanes[l] += lanes[l + step];
  return lanes[0];
}

/* y = f(x), a number at a time */
#define EACH(name, f)                                     \
  static void name(int n, const float *x, float *y) {     \
    int i;                                                \
    for (i = 0; i < n; ++i) y[i] = f;                     \
  }

EACH(sigmoid, logistic(x[i]))

EACH(tanh_of, hyperbolic_tangent(x[i]))

EACH(softplus, log_one_plus_exp(x[i]))

EACH(silu, x[i] * logistic(x[i]))

EACH(log_of, logarithm(x[i]))

EACH(exp_of, exponential(x[i]))

EACH(relu, rectified(x[i]))

EACH(absolute, -minus_absolute(x[i]))

EACH(root_of, sqrtf(x[i]))

EACH(sine_of, sine(x[i]))

EACH(cosine_of, (float)sine_of_size(x[i], 1))

/* z = f(x, y); what is not a number stays so on either side */
#define COMBINE(name, f)                                                \
  static void name(int n, const float *x, const float *y, float *z) {   \
    int i;                                                              \
    for (i = 0; i < n; ++i) z[i] = f;                                   \
  }

COMBINE(add, x[i] + y[i])

COMBINE(multiply, x[i] * y[i])

COMBINE(divide, x[i] / y[i])

COMBINE(maximum, x[i] > y[i] || x[i] != x[i] ? x[i] : y[i])

COMBINE(minimum, x[i] < y[i] || x[i] != x[i] ? x[i] : y[i])

static void choose(int n, const float *condition, const float *x, const float *y, float *z) {
  int i;
  for (i = 0; i < n; ++i) z[i] = condition[i] > 0.0f ? x[i] : y[i];
}

static void copy(int n, const float *x, float *y) { memcpy(y, x, (size_t)n * sizeof(float)); }

static void gather(int n, const float *x, const int32_t *columns, float *y) {
  int i;
  for (i = 0; i < n; ++i) y[i] = x[columns[i]];
}

/* The row of a table that a symbol names. */
static void lookup(int n, const float *table, int32_t symbol, float *y) {
  copy(n, table + (size_t)symbol * (size_t)n, y);
}

/* y = start + w x, from zero without a start. w is [PANEL columns][k][column], the last panel as narrow as it is; the sum of a
   column runs over ascending k. */
static void product(int K, int N, const float *x, const float *w, const float *start, float *y) {
  int first, n, k;
  for (first = 0; first < N; first += PANEL) {
    const int wide = N - first < PANEL ? N - first : PANEL;
    float sum[PANEL] = {0};
    for (n = 0; start && n < wide; ++n) sum[n] = start[first + n];
    if (wide == PANEL) {
      for (k = 0; k < K; ++k, w += PANEL)
        for (n = 0; n < PANEL; ++n) sum[n] = FMA(x[k], w[n], sum[n]);
    } else {
      for (k = 0; k < K; ++k, w += wide)
        for (n = 0; n < wide; ++n) sum[n] = FMA(x[k], w[n], sum[n]);
    }
    for (n = 0; n < wide; ++n) y[first + n] = sum[n];
  }
}

/* The same of weights that are the upper halves of floats. */
static void product_of_halves(int K, int N, const float *x, const uint16_t *w, const float *start, float *y) {
  int first, n, k;
  for (first = 0; first < N; first += PANEL) {
    const int wide = N - first < PANEL ? N - first : PANEL;
    float sum[PANEL] = {0};
    for (n = 0; start && n < wide; ++n) sum[n] = start[first + n];
    for (k = 0; k < K; ++k, w += wide)
      for (n = 0; n < wide; ++n) sum[n] = FMA(x[k], number_of((uint32_t)w[n] << 16), sum[n]);
    for (n = 0; n < wide; ++n) y[first + n] = sum[n];
  }
}

/* The same of weights of 8 bits: the sum of GROUP of a column is multiplied by their scale, [PANEL columns][group][column]. */
static void product_of_bytes(int K, int N, const float *x, const int8_t *w, const float *scales, const float *start, float *y) {
  int first, n, k, end;
  for (first = 0; first < N; first += PANEL) {
    const int wide = N - first < PANEL ? N - first : PANEL;
    float sum[PANEL] = {0};
    for (n = 0; start && n < wide; ++n) sum[n] = start[first + n];
    for (k = 0; k < K; scales += wide) {
      float part[PANEL] = {0};
      for (end = K - k < GROUP ? K : k + GROUP; k < end; ++k, w += wide)
        for (n = 0; n < wide; ++n) part[n] = FMA(x[k], (float)w[n], part[n]);
      for (n = 0; n < wide; ++n) sum[n] = FMA(part[n], scales[n], sum[n]);
    }
    for (n = 0; n < wide; ++n) y[first + n] = sum[n];
  }
}

/* The sum of x - mean, or of its squares, of G gates of H units: lane by lane and gate by gate, then over the lanes. */
static float sum_of_units(int G, int H, const float *x, float mean, int squares) {
  float total[4][LANES] = {{0}};
  int g, n, l;
  for (g = 0; g < G; ++g)
    for (n = 0; n < H; n += LANES)
      for (l = 0; l < LANES && n + l < H; ++l) {
        const float v = x[g * H + n + l] - mean;
        total[g][l] += squares ? v * v : v;
      }
  for (g = 1; g < G; ++g)
    for (l = 0; l < LANES; ++l) total[0][l] += total[g][l];
  return fold(total[0]);
}

/* y = (x - mean) / sqrt(variance + eps) * gain + bias for each head, without the mean unless `centred`; gain, bias or null */
static void norm(int heads, int N, const float *x, int centred, float eps, const float *gain, const float *bias, float *y) {
  int head, i;
  for (head = 0; head < heads; ++head, x += N, y += N) {
    const float mean = centred ? sum_of_units(1, N, x, 0.0f, 0) / (float)N : 0.0f;
    const float scale = 1.0f / sqrtf(sum_of_units(1, N, x, mean, 1) / (float)N + eps);
    for (i = 0; i < N; ++i) {
      float v = (x[i] - mean) * scale;
      if (gain) v = v * gain[i];
      if (bias) v = v + bias[i];
      y[i] = v;
    }
  }
}

/* The sums s of G gates, normalised together: start + gain * (s - mean) / sqrt(variance + eps) */
static void norm_gates(int G, int H, const float *gain, const float *start, float *s) {
  const float mean = sum_of_units(G, H, s, 0.0f, 0) / (float)(H * G);
  const float scale = 1.0f / sqrtf(sum_of_units(G, H, s, mean, 1) / (float)(H * G) + 1e-5f);
  int i;
  for (i = 0; i < G * H; ++i) s[i] = FMA((s[i] - mean) * scale, gain[i], start[i]);
}

/* h = o * tanh(gain * (c - mean) / sqrt(variance + eps) + bias), o given in h */
static void norm_c(int H, const float *c, const float *gain, const float *bias, float *h) {
  const float mean = sum_of_units(1, H, c, 0.0f, 0) / (float)H;
  const float scale = 1.0f / sqrtf(sum_of_units(1, H, c, mean, 1) / (float)H + 1e-5f);
  int i;
  for (i = 0; i < H; ++i) h[i] = h[i] * hyperbolic_tangent(FMA((c[i] - mean) * scale, gain[i], bias[i]));
}

/* Gated cells: a are the sums of their gates, H units each; h and c the state before and after. */

/* h = phi(a) */
static void elman_tanh(int H, const float *a, float *h) { tanh_of(H, a, h); }

static void elman_relu(int H, const float *a, float *h) { relu(H, a, h); }

/* h = phi(a + w * h') */
static void indrnn_tanh(int H, const float *a, const float *w, float *h) {
  int j;
  for (j = 0; j < H; ++j) h[j] = hyperbolic_tangent(FMA(w[j], h[j], a[j]));
}

static void indrnn_relu(int H, const float *a, const float *w, float *h) {
  int j;
  for (j = 0; j < H; ++j) h[j] = rectified(FMA(w[j], h[j], a[j]));
}

/* h = (1 - leak) * h' + leak * phi(a) */
static void rate_tanh(int H, const float *a, const float *leak, float *h) {
  int j;
  for (j = 0; j < H; ++j) h[j] = FMA(leak[j], hyperbolic_tangent(a[j]), (1.0f - leak[j]) * h[j]);
}

static void rate_relu(int H, const float *a, const float *leak, float *h) {
  int j;
  for (j = 0; j < H; ++j) h[j] = FMA(leak[j], rectified(a[j]), (1.0f - leak[j]) * h[j]);
}

/* r = s(a_r), z = s(a_z), n = tanh(u_n + r * a_n), h = (1 - z) * n + z * h' */
static void gru(int H, const float *a, const float *u, float *h) {
  int j;
  for (j = 0; j < H; ++j) {
    const float r = logistic(a[j]), z = logistic(a[H + j]);
    const float n = hyperbolic_tangent(FMA(r, a[2 * H + j], u[j]));
    h[j] = FMA(z, h[j], (1.0f - z) * n);
  }
}

/* q = s(a_r) * h'; the gate a_z becomes z */
static void gru_before_between(int H, float *a, const float *h, float *q) {
  int j;
  for (j = 0; j < H; ++j) {
    q[j] = logistic(a[j]) * h[j];
    a[H + j] = logistic(a[H + j]);
  }
}

/* n = tanh(a_n), h = (1 - z) * n + z * h' */
static void gru_before(int H, const float *a, float *h) {
  int j;
  for (j = 0; j < H; ++j) h[j] = FMA(a[H + j], h[j], (1.0f - a[H + j]) * hyperbolic_tangent(a[2 * H + j]));
}

/* q = f * h'; the gate a_f becomes f */
static void mgu_between(int H, float *a, const float *h, float *q) {
  int j;
  for (j = 0; j < H; ++j) {
    a[j] = logistic(a[j]);
    q[j] = a[j] * h[j];
  }
}

/* h = (1 - f) * h' + f * tanh(a_n) */
static void mgu(int H, const float *a, float *h) {
  int j;
  for (j = 0; j < H; ++j) h[j] = FMA(a[j], hyperbolic_tangent(a[H + j]), (1.0f - a[j]) * h[j]);
}

/* i, f, o = s(a), c = f * c' + i * g, h = o * tanh(c); coupled, f = 1 - i. With peepholes i and f add p * c', o adds p * c.
   `squashed`: g is s(a_g), not tanh(a_g); `normed`: h is o alone, and norm_c goes on. */
static inline void lstm(int H, const float *a, const float *p, int coupled, int squashed, int normed, float *c, float *h) {
  const int at_g = coupled ? 1 : 2, at_o = at_g + 1;
  int j;
  for (j = 0; j < H; ++j) {
    const float a_g = a[at_g * H + j], i = logistic(p ? FMA(p[j], c[j], a[j]) : a[j]);
    const float f = coupled ? 1.0f - i : logistic(p ? FMA(p[H + j], c[j], a[H + j]) : a[H + j]);
    const float g = squashed ? logistic(a_g) : hyperbolic_tangent(a_g), now = FMA(f, c[j], i * g);
    const float o = logistic(p ? FMA(p[at_g * H + j], now, a[at_o * H + j]) : a[at_o * H + j]);
    c[j] = now;
    h[j] = normed ? o : o * hyperbolic_tangent(now);
  }
}

/* h = a * h + b */
static void linear_scan(int n, const float *a, const float *b, float *h) {
  int i;
  for (i = 0; i < n; ++i) h[i] = FMA(a[i], h[i], b[i]);
}

/* The same of n complex numbers. */
static void complex_scan(int n, const float *a, const float *b, float *h) {
  int i;
  for (i = 0; i < 2 * n; i += 2) {
    const float real = FMA(a[i], h[i], FMA(-a[i + 1], h[i + 1], b[i]));
    h[i + 1] = FMA(a[i], h[i + 1], FMA(a[i + 1], h[i], b[i + 1]));
    h[i] = real;
  }
}

/* h = exp(delta A) * h + delta x B for N numbers of each of D channels: y = sum_n C[n] h[n] */
static void selective(int D, int N, const float *x, const float *delta, const float *A, const float *B, const float *C,
                      float *h, float *y) {
  int d, n;
  for (d = 0; d < D; ++d, A += N, h += N) {
    const float drive = delta[d] * x[d];
    for (n = 0; n < N; ++n) h[n] = FMA(exponential(delta[d] * A[n]), h[n], drive * B[n]);
    y[d] = 0.0f;
    for (n = 0; n < N; ++n) y[d] = FMA(h[n], C[n], y[d]);
  }
}

/* h = a h + b x for N complex numbers of each of D channels: y = sum_n Re(c[n] h[n]) */
static void bank(int D, int N, const float *x, const float *a, const float *b, const float *c, float *h, float *y) {
  int d, n;
  for (d = 0; d < D; ++d) {
    float sum = 0.0f;
    for (n = 0; n < N; ++n, a += 2, b += 2, c += 2, h += 2) {
      const float real = FMA(a[0], h[0], FMA(-a[1], h[1], b[0] * x[d]));
      const float imaginary = FMA(a[0], h[1], FMA(a[1], h[0], b[1] * x[d]));
      h[0] = real, h[1] = imaginary;
      sum = FMA(c[0], real, sum);
      sum = FMA(-c[1], imaginary, sum);
    }
    y[d] = sum;
  }
}

/* For each of H heads S = diag(a) S' + beta (alpha^T S') + k v^T, y = S^T q, S (K, V); with b the delta rule, alpha = a * k and
   b (v - alpha^T S') in place of the last two. a has one number a head or a key, or is null; q and k, alpha, beta have so many
   heads. Key i is added to accumulator i % 4. */
static void matrix(int H, int K, int V, const float *q, const float *k, int q_heads, const float *v, const float *a, int a_keys,
                   const float *b, const float *alpha, int alpha_heads, const float *beta, int beta_heads, float *S, float *y) {
  int head, first, i, c;
  for (head = 0; head < H; ++head, v += V, y += V, S += K * V) {
    const float *qh = q + head / (H / q_heads) * K, *kh = k + head / (H / q_heads) * K;
    const float *alphas = alpha ? alpha + head / (H / alpha_heads) * K : NULL;
    const float *betas = beta ? beta + head / (H / beta_heads) * K : NULL;
    for (first = 0; first < V; first += COLUMNS) {
      const int wide = V - first < COLUMNS ? V - first : COLUMNS;
      float m[COLUMNS] = {0}, d[COLUMNS] = {0}, sums[2][COLUMNS] = {{0}}, reads[2][COLUMNS] = {{0}};
      for (i = 0; i < K && (alpha || b); ++i) {
        const float by = alphas ? alphas[i] : a && a_keys ? a[head * K + i] * kh[i] : kh[i];
        const float *s = S + i * V + first;
        for (c = 0; c < wide; ++c) sums[i % 2][c] = FMA(by, s[c], sums[i % 2][c]);
      }
      for (c = 0; c < wide; ++c) {
        m[c] = sums[0][c] + sums[1][c];
        if (b && a && !a_keys) m[c] = a[head] * m[c]; /* one decay for all keys */
        d[c] = b ? b[head] * (v[first + c] - m[c]) : v[first + c];
      }
      for (i = 0; i < K; ++i) {
        const float decayed = a ? a[a_keys ? head * K + i : head] : 1.0f;
        float *s = S + i * V + first;
        for (c = 0; c < wide; ++c) {
          float now = decayed * s[c];
          if (betas) now = FMA(betas[i], m[c], now);
          s[c] = now = FMA(kh[i], d[c], now);
          reads[i % 2][c] = FMA(qh[i], now, reads[i % 2][c]);
        }
      }
      for (c = 0; c < wide; ++c) y[first + c] = reads[0][c] + reads[1][c];
    }
  }
}

/* u = p * exp(x - m), m the largest x, or the largest among the states that p can be in: the sum of u */
static float weigh(int K, const float *x, const float *p, int possible, float *u) {
  float m = -INFINITY, total[LANES] = {0};
  int k, l;
  for (k = 0; k < K; ++k) m = (!possible || p[k] > 0.0f) && x[k] > m ? x[k] : m;
  m = m == -INFINITY ? 0.0f : m;
  for (k = 0; k < K; k += LANES)
    for (l = 0; l < LANES && k + l < K; ++l) {
      const float d = x[k + l] - m;
      u[k + l] = p[k + l] * decay(d > 0.0f ? 0.0f : d);
      total[l] += u[k + l];
    }
  return fold(total);
}

/* p = (p * exp(x)) A, divided by the sum of p * exp(x); u is room for K numbers */
static void filter(int K, const float *x, const float *A, float *u, float *p) {
  const int vectors = (K + LANES - 1) / LANES, parts = K <= 8 ? 4 : vectors >= 8 ? 1 : vectors >= 3 ? 2 : 4;
  float c = weigh(K, x, p, 0, u), factor;
  int i, j;
  if (!(c >= 1e-25f)) c = weigh(K, x, p, 1, u);
  factor = c > 0.0f ? 1.0f / c : c;
  for (j = 0; j < K; ++j) {
    float sum[4] = {0};
    for (i = 0; i < K; ++i) sum[i % parts] = FMA(A[i * K + j], u[i], sum[i % parts]);
    p[j] = (K <= 8 ? (sum[0] + sum[1]) + (sum[2] + sum[3]) : ((sum[0] + sum[1]) + sum[2]) + sum[3]) * factor;
  }
}

/* y = bias + sum_k w[k] * (the last K values of x)[k] */
static void convolution(int D, int K, const float *x, const float *w, const float *bias, float *window, float *y) {
  int d, k;
  for (d = 0; d < D; ++d) {
    float sum = bias[d];
    for (k = 0; k < K; ++k) sum = FMA(w[k * D + d], k + 1 < K ? window[k * D + d] : x[d], sum);
    y[d] = sum;
  }
  if (K < 2) return;
  memmove(window, window + D, (size_t)((K - 2) * D) * sizeof(float));
  copy(D, x, window + (K - 2) * D);
}

/* The inputs of some steps ago side by side; past holds `longest` of them, oldest first. */
static void lags(int D, int count, const int32_t *delays, int longest, const float *x, float *past, float *y) {
  int i;
  for (i = 0; i < count; ++i) copy(D, delays[i] ? past + (longest - delays[i]) * D : x, y + i * D);
  if (longest == 0) return;
  memmove(past, past + D, (size_t)((longest - 1) * D) * sizeof(float));
  copy(D, x, past + (longest - 1) * D);
}

/* sum = decay * sum + x, total = decay * total + weight, doubles of the state: sum / total, 0 without any weight */
static void mean(int C, int W, double by, const float *x, const float *weight, float *sums, float *totals, float *y) {
  int i;
  double s, t = 0.0;
  for (i = 0; i < W; ++i) {
    memcpy(&t, totals + 2 * i, sizeof t);
    t = FMA_DOUBLE(by, t, (double)weight[i]);
    memcpy(totals + 2 * i, &t, sizeof t);
  }
  for (i = 0; i < C; ++i) {
    memcpy(&s, sums + 2 * i, sizeof s);
    s = FMA_DOUBLE(by, s, (double)x[i]);
    memcpy(sums + 2 * i, &s, sizeof s);
    memcpy(&t, totals + (W == 1 ? 0 : 2 * i), sizeof t);
    y[i] = t > 0.0 ? (float)(s / t) : 0.0f;
  }
}
