// Rows of numbers as JSON. std::to_chars finds the shortest text; nine digits, which are enough for a float32 to come
// back, need one product in double precision and are there in a fifth of the time.
#include "json.h"

#include <cmath>
#include <cstring>

namespace elman {
namespace {

constexpr int digits = 9;
constexpr double tens[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13};

double ten_to(int k) { return k >= 0 && k < int(sizeof(tens) / sizeof(*tens)) ? tens[k] : std::pow(10.0, k); }

// x > 0 as significand * 10^(e - 8), where the significand has nine digits.
struct Decimal {
  uint32_t significand;
  int e;

  explicit Decimal(double x) {
    uint64_t bits;
    std::memcpy(&bits, &x, 8);
    e = ((int(bits >> 52) - 1023) * 1233) >> 12;  // log10(2) is nearly 1233 / 4096: at most one too small
    double scaled = x * ten_to(digits - 1 - e);
    if (scaled >= 1e9 - 0.5) scaled = x * ten_to(digits - 1 - ++e);
    significand = uint32_t(scaled + 0.5);
  }
};

// The digits of a number below 10^8, the first of the eight in the lowest byte: halves, their halves, and theirs, all at once.
uint64_t eight_digits(uint32_t value) {
  const uint64_t fours = (value / 10000) | uint64_t(value % 10000) << 32;
  const uint64_t hundreds = (fours * 10486 >> 20) & 0x7f0000007f;  // a hundredth of each, for 10486 / 2^20 is nearly that
  const uint64_t twos = hundreds | (fours - 100 * hundreds) << 16;
  const uint64_t tens = (twos * 103 >> 10) & 0x000f000f000f000f;
  return tens | (twos - 10 * tens) << 8;
}

// The nine digits of a significand; how many are left without the zeros at the end.
int spell(uint32_t significand, char* out) {
  constexpr uint32_t first = 100000000;
  const uint64_t rest = eight_digits(significand % first), text = rest | 0x3030303030303030;
  out[0] = char('0' + significand / first);
  std::memcpy(out + 1, &text, 8);  // the lowest byte first, as on every machine that this runs on
  return rest == 0 ? 1 : digits - __builtin_clzll(rest) / 8;
}

char* put(char* to, const char* from, int64_t count) {
  std::memcpy(to, from, size_t(count));
  return to + count;
}

char* number(float given, char* out) {
  if (!std::isfinite(given)) return put(out, "null", 4);
  *out = '-';
  out += std::signbit(given);  // without a branch: which way it goes, nobody can tell
  if (given == 0) return put(out, "0.0", 3);
  const Decimal x(std::fabs(double(given)));
  if (x.e >= -5 && x.e < 0) {  // 0.000012, as most are
    std::memcpy(out, "0.000000", 8);
    out += 1 - x.e;
    return out + spell(x.significand, out);
  }
  char spelt[digits];
  const int used = spell(x.significand, spelt);
  if (x.e >= 0 && x.e < digits) {  // 1.2, 1200.0
    for (int i = 0; i <= x.e; ++i) *out++ = i < used ? spelt[i] : '0';
    *out++ = '.';
    if (used <= x.e + 1) *out++ = '0';
    else out = put(out, spelt + x.e + 1, used - x.e - 1);
    return out;
  }
  *out++ = spelt[0];  // 1.2e-07
  *out++ = '.';
  if (used == 1) *out++ = '0';
  else out = put(out, spelt + 1, used - 1);
  *out++ = 'e';
  *out++ = x.e < 0 ? '-' : '+';
  *out++ = char('0' + std::abs(x.e) / 10);
  *out++ = char('0' + std::abs(x.e) % 10);
  return out;
}

}  // namespace

void json_rows(int64_t n, int64_t H, const float* y, char* text, int64_t* ends) {
  char* out = text;
  for (int64_t i = 0; i < n; ++i) {
    *out++ = '[';
    for (int64_t j = 0; j < H; ++j) {
      if (j) *out++ = ',';
      out = number(y[i * H + j], out);
    }
    *out++ = ']';
    ends[i] = out - text;
  }
}

}  // namespace elman
