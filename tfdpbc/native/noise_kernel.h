// What `noise.cc` asks of `noise_kernel.cc`, which is compiled for several sets of instructions and knows no TensorFlow.

#ifndef TFDPBC_NOISE_KERNEL_H_
#define TFDPBC_NOISE_KERNEL_H_

#include <cstdint>

namespace tfdpbc {

// A tensor of `size` numbers to noise: out = (sum + stddev * z) * factor. `out` may be `sum`.
struct Noised {
  const float* sum;
  float* out;
  int64_t size;
  float stddev, factor;
  uint64_t key, counter[2];  // of Philox, TensorFlow's layout
  int64_t pairs() const { return (size + 1) / 2; }
};

// For the counters begin..end-1, each of which makes two pairs of numbers.
using AddGaussian = void(const Noised& noised, int64_t begin, int64_t end);
AddGaussian AddGaussianGeneric;
#ifdef TFDPBC_X86
AddGaussian AddGaussianAvx2, AddGaussianAvx512;
#endif

}  // namespace tfdpbc

#endif  // TFDPBC_NOISE_KERNEL_H_
