// The TensorFlow operation around `squares_kernel.cc`.

#include "squares_kernel.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/util/work_sharder.h"

namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// The processor that runs this may be another than the one that compiled it.
tfdpbc::SumOfSquares* Fastest() {
#ifdef TFDPBC_X86
  if (__builtin_cpu_supports("avx512f")) return tfdpbc::SumOfSquaresAvx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return tfdpbc::SumOfSquaresAvx2;
#endif
  return tfdpbc::SumOfSquaresGeneric;
}

// The product of the sums of squares of each row of its inputs.
class RowSquaresOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const int64_t rows = context->input(0).dims() >= 1 ? context->input(0).dim_size(0) : 0;
    for (int i = 0; i < context->num_inputs(); ++i) {
      const Tensor& numbers = context->input(i);
      OP_REQUIRES(context, numbers.dims() >= 1 && numbers.dim_size(0) == rows,
                  tensorflow::errors::InvalidArgument("numbers must have rows, all inputs as many"));
    }
    Tensor* squares = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({rows}), &squares));
    if (rows == 0) return;
    std::vector<double> product(rows, 1.0);
    for (int i = 0; i < context->num_inputs(); ++i) Multiply(context, context->input(i), &product);
    // A product that is too small or too large for a single is 0 or infinite there.
    for (int64_t row = 0; row < rows; ++row) squares->flat<float>()(row) = static_cast<float>(product[row]);
  }

 private:
  static void Multiply(OpKernelContext* context, const Tensor& numbers, std::vector<double>* product) {
    const int64_t rows = product->size(), width = numbers.NumElements() / rows;
    const float* from = numbers.flat<float>().data();
    tfdpbc::SumOfSquares* sum = Fastest();
    // Long rows are cut, so that a single one keeps all threads busy too.
    constexpr int64_t kPiece = 1 << 15;
    const int64_t pieces = std::max<int64_t>(1, (width + kPiece - 1) / kPiece);
    std::vector<double> parts(rows * pieces, 0.0);
    auto work = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / pieces, start = i % pieces * kPiece;
        parts[i] = sum(from + row * width + start, std::min(kPiece, width - start));
      }
    };
    const auto& threads = *context->device()->tensorflow_cpu_worker_threads();
    tensorflow::Shard(threads.num_threads, threads.workers, rows * pieces, std::min(kPiece, width) / 8 + 20, work);
    for (int64_t row = 0; row < rows; ++row) {
      double total = 0;
      for (int64_t k = 0; k < pieces; ++k) total += parts[row * pieces + k];
      // As in the fallback: a norm that no single holds belongs to no finite contribution.
      (*product)[row] *= std::sqrt(total) <= std::numeric_limits<float>::max() ? total : std::nan("");
    }
  }
};

}  // namespace

REGISTER_OP("TfdpbcRowSquares")
    .Input("numbers: N * float")
    .Attr("N: int >= 1")
    .Output("squares: float")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      tensorflow::shape_inference::ShapeHandle numbers;
      TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(0), 1, &numbers));
      context->set_output(0, context->Vector(context->Dim(numbers, 0)));
      return absl::OkStatus();
    });
REGISTER_KERNEL_BUILDER(Name("TfdpbcRowSquares").Device(tensorflow::DEVICE_CPU), RowSquaresOp);
