// The TensorFlow operation around `noise_kernel.cc`.

#include "noise_kernel.h"

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/util/work_sharder.h"

namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// The processor that runs this may be another than the one that compiled it.
tfdpbc::AddGaussian* Fastest() {
#ifdef TFDPBC_X86
  if (__builtin_cpu_supports("avx512f")) return tfdpbc::AddGaussianAvx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return tfdpbc::AddGaussianAvx2;
#endif
  return tfdpbc::AddGaussianGeneric;
}

class AddGaussianOp : public OpKernel {
 public:
  explicit AddGaussianOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("offset", &offset_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &sum = context->input(0), &key = context->input(1), &counter = context->input(2);
    const Tensor &stddev = context->input(3), &factor = context->input(4);
    OP_REQUIRES(context, key.NumElements() == 1 && counter.NumElements() == 2 && stddev.NumElements() == 1 &&
                             factor.NumElements() == 1,
                tensorflow::errors::InvalidArgument("key, stddev and factor must hold one number, counter two"));
    Tensor* out = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, sum.shape(), &out));
    tfdpbc::Noised noised;
    noised.sum = sum.flat<float>().data(), noised.out = out->flat<float>().data(), noised.size = sum.NumElements();
    noised.stddev = stddev.flat<float>()(0), noised.factor = factor.flat<float>()(0);
    noised.key = key.flat<tensorflow::uint64>()(0);
    const uint64_t low = counter.flat<tensorflow::uint64>()(0), moved = low + static_cast<uint64_t>(offset_);
    noised.counter[0] = moved, noised.counter[1] = counter.flat<tensorflow::uint64>()(1) + (moved < low);
    if (noised.size == 0) return;
    // Whole vectors for each thread, so that none computes what another one needs.
    constexpr int64_t kBlock = 256;
    const int64_t counters = (noised.pairs() + 1) / 2, blocks = (counters + kBlock - 1) / kBlock;
    tfdpbc::AddGaussian* compute = Fastest();
    auto work = [&](int64_t begin, int64_t end) {
      compute(noised, begin * kBlock, end * kBlock < counters ? end * kBlock : counters);
    };
    const auto& threads = *context->device()->tensorflow_cpu_worker_threads();
    tensorflow::Shard(threads.num_threads, threads.workers, blocks, kBlock * 16, work);
  }

 private:
  int64_t offset_;
};

}  // namespace

REGISTER_OP("TfdpbcAddGaussian")
    .Input("sum: float")
    .Input("key: uint64")
    .Input("counter: uint64")
    .Input("stddev: float")
    .Input("factor: float")
    .Output("noised: float")
    .Attr("offset: int")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);
REGISTER_KERNEL_BUILDER(Name("TfdpbcAddGaussian").Device(tensorflow::DEVICE_CPU), AddGaussianOp);
