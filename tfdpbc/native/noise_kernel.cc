// Gaussian noise added to a sum in one pass. The bits are those of TensorFlow's Philox 4x32-10 for the same key and counter
// (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), two of 32 bits make two numbers (Box and Muller,
// 1958): tfdpbc/noise.py does the same in TensorFlow operations and is the oracle of the tests.
//
// Loops over kWidth counters with nothing between them to wait for: the compiler makes vector instructions of them.

#include "noise_kernel.h"

#include <cmath>
#include <cstring>

namespace tfdpbc {
namespace {

// Compiled several times (build.py), each with other instructions and another name for what it exports.
#ifndef TFDPBC_VARIANT
#define TFDPBC_VARIANT AddGaussianGeneric
#endif

constexpr int kWidth = 32;

void Philox(uint64_t key, const uint64_t counter[2], int64_t first, uint32_t words[4][kWidth]) {
  uint32_t *c0 = words[0], *c1 = words[1], *c2 = words[2], *c3 = words[3];
  for (int i = 0; i < kWidth; ++i) {
    const uint64_t low = counter[0] + static_cast<uint64_t>(first + i);
    const uint64_t high = counter[1] + (low < counter[0]);
    c0[i] = static_cast<uint32_t>(low), c1[i] = static_cast<uint32_t>(low >> 32);
    c2[i] = static_cast<uint32_t>(high), c3[i] = static_cast<uint32_t>(high >> 32);
  }
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    for (int i = 0; i < kWidth; ++i) {
      const uint64_t a = uint64_t{0xD2511F53u} * c0[i], b = uint64_t{0xCD9E8D57u} * c2[i];
      c0[i] = static_cast<uint32_t>(b >> 32) ^ c1[i] ^ k0;
      c2[i] = static_cast<uint32_t>(a >> 32) ^ c3[i] ^ k1;
      c1[i] = static_cast<uint32_t>(b), c3[i] = static_cast<uint32_t>(a);
    }
  }
}

// log(x) for 2^-33 <= x <= 1, to 1e-7 relative: x = m 2^e with m in [sqrt(1/2), sqrt(2)), Cephes' polynomial in m - 1.
inline float Log(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  const int32_t shifted = bits - 0x3f3504f3;  // exponents count from sqrt(1/2)
  const int32_t e = shifted >> 23;
  const int32_t mantissa = (shifted & 0x007fffff) + 0x3f3504f3;
  float m;
  std::memcpy(&m, &mantissa, sizeof(m));
  m -= 1.0f;
  const float z = m * m, exponent = static_cast<float>(e);
  float y = 7.0376836292e-2f;
  y = y * m - 1.1514610310e-1f;
  y = y * m + 1.1676998740e-1f;
  y = y * m - 1.2420140846e-1f;
  y = y * m + 1.4249322787e-1f;
  y = y * m - 1.6668057665e-1f;
  y = y * m + 2.0000714765e-1f;
  y = y * m - 2.4999993993e-1f;
  y = y * m + 3.3333331174e-1f;
  y = y * m * z + exponent * -2.12194440e-4f - 0.5f * z;
  return m + y + exponent * 0.693359375f;
}

// The sine and cosine of 2 pi u, 0 <= u <= 1: the quarter of the circle that u is nearest to, and the rest, |rest| <= pi / 4.
inline void SinCos(float u, float* sine, float* cosine) {
  const int32_t quarter = static_cast<int32_t>(4.0f * u + 0.5f);
  const float x = 6.283185307179586f * (u - 0.25f * static_cast<float>(quarter)), z = x * x;
  const float s = ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * x + x;
  const float c = ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * z * z - 0.5f * z + 1.0f;
  const float one = quarter & 1 ? c : s, other = quarter & 1 ? s : c;
  *sine = quarter & 2 ? -one : one;
  *cosine = (quarter + 1) & 2 ? -other : other;
}

}  // namespace

void TFDPBC_VARIANT(const Noised& n, int64_t begin, int64_t end) {
  const int64_t pairs = n.pairs();
  for (int64_t first = begin; first < end; first += kWidth) {
    alignas(64) uint32_t words[4][kWidth];
    alignas(64) float sines[2][kWidth], cosines[2][kWidth];
    Philox(n.key, n.counter, first, words);
    for (int half = 0; half < 2; ++half) {
      const uint32_t *of_radius = words[2 * half], *of_angle = words[2 * half + 1];
      for (int i = 0; i < kWidth; ++i) {
        // Never 0, so that the logarithm is finite; numbers up to 6.8 standard deviations.
        const float radius = n.stddev * std::sqrt(-2.0f * Log(static_cast<float>(of_radius[i]) * 0x1p-32f + 0x1p-33f));
        float s, c;
        SinCos(static_cast<float>(of_angle[i]) * 0x1p-32f, &s, &c);
        sines[half][i] = radius * s, cosines[half][i] = radius * c;
      }
    }
    alignas(64) float in_order[2][2 * kWidth];  // pairs one after the other
    for (int i = 0; i < kWidth; ++i) {
      in_order[0][2 * i] = sines[0][i], in_order[0][2 * i + 1] = sines[1][i];
      in_order[1][2 * i] = cosines[0][i], in_order[1][2 * i + 1] = cosines[1][i];
    }
    // The sines of all pairs come first, then their cosines.
    const int64_t from = 2 * first, to = from + 2 * (end - first < kWidth ? end - first : kWidth);
    for (int part = 0; part < 2; ++part) {
      const int64_t start = part * pairs + from, limit = part ? n.size : pairs;
      const int64_t stop = part * pairs + to < limit ? part * pairs + to : limit;
      const float *sum = n.sum + start, *z = in_order[part];
      float* out = n.out + start;
      for (int64_t i = 0; i < stop - start; ++i) out[i] = (sum[i] + z[i]) * n.factor;
    }
  }
}

}  // namespace tfdpbc
