// Sums of squares in one pass, without a copy of the squares: TensorFlow's tf.reduce_sum(tf.square(t)) is the fallback and the
// oracle of the tests.

#include "squares_kernel.h"

namespace tfdpbc {

// Compiled several times (build.py), each with other instructions and another name for what it exports.
#ifndef TFDPBC_VARIANT
#define TFDPBC_VARIANT SumOfSquaresGeneric
#endif

double TFDPBC_VARIANT(const float* numbers, int64_t size) {
  constexpr int kLanes = 32;  // sums that do not wait for each other
  double sums[kLanes] = {}, total = 0;
  const int64_t whole = size / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes)
    for (int k = 0; k < kLanes; ++k) sums[k] += static_cast<double>(numbers[i + k]) * numbers[i + k];
  for (int64_t i = whole; i < size; ++i) total += static_cast<double>(numbers[i]) * numbers[i];
  for (int k = 0; k < kLanes; ++k) total += sums[k];
  return total;
}

}  // namespace tfdpbc
