// What `conv.cc` asks of `conv_kernel.cc`, which is compiled for several sets of instructions and knows no TensorFlow.

#ifndef TFDPBC_CONV_KERNEL_H_
#define TFDPBC_CONV_KERNEL_H_

#include <cstdint>

namespace tfdpbc {

struct Sizes {
  int64_t contributions, examples, height, width, channels;  // x, padded by the caller's `top` and `left` while copied
  int64_t rows, columns, features;                            // d
  int64_t kernel_rows, kernel_columns, stride_rows, stride_columns, top, left;
  int64_t padded_height() const { return (rows - 1) * stride_rows + kernel_rows; }
  int64_t padded_width() const { return (columns - 1) * stride_columns + kernel_columns; }
  int64_t run() const { return kernel_columns * channels; }  // numbers of a kernel row, which lie together
};

// For the contributions begin..end-1: the squared norms of their kernels' gradients, those gradients where `gradients` is not
// null, and the gradients of biases.
using ConvGradients = void(const Sizes& sizes, const float* x, const float* d, float* squares, float* biases,
                           float* gradients, int64_t begin, int64_t end);
ConvGradients ConvGradientsGeneric;
#ifdef TFDPBC_X86
ConvGradients ConvGradientsAvx2, ConvGradientsAvx512;
#endif

}  // namespace tfdpbc

#endif  // TFDPBC_CONV_KERNEL_H_
