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

void pair(uint32_t value, char* out) {
  out[0] = char('0' + value / 10);
  out[1] = char('0' + value % 10);
}

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

// The nine digits of a significand; how many are left without the zeros at the end.
int spell(uint32_t significand, char* out) {
  const uint32_t high = significand / 10000, low = significand % 10000;
  out[0] = char('0' + high / 10000);
  pair(high / 100 % 100, out + 1), pair(high % 100, out + 3), pair(low / 100, out + 5), pair(low % 100, out + 7);
  int used = digits;
  while (used > 1 && out[used - 1] == '0') --used;
  return used;
}

char* put(char* to, const char* from, int64_t count) {
  std::memcpy(to, from, size_t(count));
  return to + count;
}

char* number(float given, char* out) {
  if (!std::isfinite(given)) return put(out, "null", 4);
  if (std::signbit(given)) *out++ = '-';
  if (given == 0) return put(out, "0.0", 3);
  const Decimal x(std::fabs(double(given)));
  char spelt[digits];
  const int used = spell(x.significand, spelt);
  if (x.e >= -5 && x.e < 0) {  // 0.000012
    out = put(out, "0.0000", 1 - x.e);
    return put(out, spelt, used);
  }
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
