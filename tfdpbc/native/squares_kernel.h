// What `squares.cc` asks of `squares_kernel.cc`, which is compiled for several sets of instructions and knows no TensorFlow.

#ifndef TFDPBC_SQUARES_KERNEL_H_
#define TFDPBC_SQUARES_KERNEL_H_

#include <cstdint>

namespace tfdpbc {

// The sum of the squares of `size` numbers, in double precision: no square of a single one vanishes or overflows there.
using SumOfSquares = double(const float* numbers, int64_t size);
SumOfSquares SumOfSquaresGeneric;
#ifdef TFDPBC_X86
SumOfSquares SumOfSquaresAvx2, SumOfSquaresAvx512;
#endif

}  // namespace tfdpbc

#endif  // TFDPBC_SQUARES_KERNEL_H_
