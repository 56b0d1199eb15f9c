// The TensorFlow operation around `conv_kernel.cc`.

#include "conv_kernel.h"

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/util/work_sharder.h"

namespace {

using tensorflow::DEVICE_CPU;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;

// The processor that runs this may be another than the one that compiled it.
tfdpbc::ConvGradients* Fastest() {
#ifdef TFDPBC_X86
  if (__builtin_cpu_supports("avx512f")) return tfdpbc::ConvGradientsAvx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return tfdpbc::ConvGradientsAvx2;
#endif
  return tfdpbc::ConvGradientsGeneric;
}

class ConvOp : public OpKernel {
 public:
  explicit ConvOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("kernel", &kernel_));
    OP_REQUIRES_OK(context, context->GetAttr("strides", &strides_));
    OP_REQUIRES_OK(context, context->GetAttr("offset", &offset_));
    OP_REQUIRES_OK(context, context->GetAttr("examples", &examples_));
    OP_REQUIRES_OK(context, context->GetAttr("keep", &keep_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &d = context->input(1);
    OP_REQUIRES(context, x.dims() == 4 && d.dims() == 4 && x.dim_size(0) == d.dim_size(0) && examples_ >= 1 &&
                             x.dim_size(0) % examples_ == 0,
                tensorflow::errors::InvalidArgument("x and d must have rank 4 and the rows of whole contributions"));
    OP_REQUIRES(context, kernel_.size() == 2 && strides_.size() == 2 && offset_.size() == 2 && kernel_[0] >= 1 &&
                             kernel_[1] >= 1 && strides_[0] >= 1 && strides_[1] >= 1 && offset_[0] >= 0 &&
                             offset_[1] >= 0 && d.dim_size(1) >= 1 && d.dim_size(2) >= 1 && d.dim_size(3) >= 1,
                tensorflow::errors::InvalidArgument("kernel and strides must be two numbers >= 1 each, offset two >= 0, "
                                                    "and d must have positions and features"));
    tfdpbc::Sizes s;
    s.examples = examples_;
    s.contributions = x.dim_size(0) / examples_;
    s.height = x.dim_size(1), s.width = x.dim_size(2), s.channels = x.dim_size(3);
    s.rows = d.dim_size(1), s.columns = d.dim_size(2), s.features = d.dim_size(3);
    s.kernel_rows = kernel_[0], s.kernel_columns = kernel_[1];
    s.stride_rows = strides_[0], s.stride_columns = strides_[1];
    s.top = offset_[0], s.left = offset_[1];
    const int64_t numbers = s.kernel_rows * s.run() * s.features;
    Tensor *squares = nullptr, *biases = nullptr, *gradients = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({s.contributions}), &squares));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({s.contributions, s.features}), &biases));
    OP_REQUIRES_OK(context, context->allocate_output(2, TensorShape({s.contributions, keep_ ? numbers : 0}), &gradients));
    if (s.contributions == 0) return;
    const float *from_x = x.flat<float>().data(), *from_d = d.flat<float>().data();
    float *to = squares->flat<float>().data(), *to_bias = biases->flat<float>().data();
    float* all = keep_ ? gradients->flat<float>().data() : nullptr;
    tfdpbc::ConvGradients* compute = Fastest();
    auto work = [&](int64_t begin, int64_t end) { compute(s, from_x, from_d, to, to_bias, all, begin, end); };
    const int64_t cost = s.examples * s.rows * s.columns * numbers / 8 + 1000;  // cycles for one contribution
    const auto& threads = *context->device()->tensorflow_cpu_worker_threads();
    tensorflow::Shard(threads.num_threads, threads.workers, s.contributions, cost, work);
  }

 private:
  std::vector<int64_t> kernel_, strides_, offset_;
  int64_t examples_;
  bool keep_;
};

}  // namespace

REGISTER_OP("TfdpbcConvGradients")
    .Input("x: float")
    .Input("d: float")
    .Output("squares: float")
    .Output("biases: float")
    .Output("gradients: float")
    .Attr("kernel: list(int)")
    .Attr("strides: list(int)")
    .Attr("offset: list(int)")
    .Attr("examples: int")
    .Attr("keep: bool")
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->UnknownShapeOfRank(1));
      context->set_output(1, context->UnknownShapeOfRank(2));
      context->set_output(2, context->UnknownShapeOfRank(2));
      return absl::OkStatus();
    });
REGISTER_KERNEL_BUILDER(Name("TfdpbcConvGradients").Device(DEVICE_CPU), ConvOp);
