// Sums of squares in one pass, without a copy of the squares: TensorFlow's tf.reduce_sum(tf.square(t)) is the fallback and the
// oracle of the tests.

#include "squares_kernel.h"

#include <algorithm>

namespace tfdpbc {

// Compiled several times (build.py), each with other instructions and another name for what it exports.
#ifndef TFDPBC_VARIANT
#define TFDPBC_VARIANT SumOfSquaresGeneric
#endif

double TFDPBC_VARIANT(const float* numbers, int64_t size) {
  constexpr int kLanes = 64;          // sums that do not wait for each other
  constexpr int64_t kPart = 1 << 12;  // few enough terms for single precision
  double total = 0;
  for (int64_t start = 0; start < size; start += kPart) {
    const float* part = numbers + start;
    const int64_t count = std::min(kPart, size - start), whole = count / kLanes * kLanes;
    float sums[kLanes] = {};
    for (int64_t i = 0; i < whole; i += kLanes)
      for (int k = 0; k < kLanes; ++k) sums[k] += part[i + k] * part[i + k];
    for (int64_t i = whole; i < count; ++i) total += static_cast<double>(part[i] * part[i]);
    for (int k = 0; k < kLanes; ++k) total += sums[k];
  }
  return total;
}

}  // namespace tfdpbc
