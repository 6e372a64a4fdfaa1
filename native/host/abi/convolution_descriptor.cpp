// The descriptor of a convolution.
#include <algorithm>

#include "host/abi/state.hpp"

namespace mucudnn::host {
namespace {

constexpr int kMaxDims = cudnnConvolutionStruct::kMaxDims;

void check_dims(int dims) {
  if (dims < 0) bad_parameter(dims, " spatial dimensions");
  if (dims > kMaxDims) not_supported(dims, " spatial dimensions: at most 6");
}

void set(cudnnConvolutionDescriptor_t convolution, int dims, const int* paddings, const int* strides,
         const int* dilations, cudnnConvolutionMode_t mode, cudnnDataType_t compute_type) {
  require("the convolution descriptor, the paddings, the strides, the dilations",
          {convolution, paddings, strides, dilations});
  check_dims(dims);
  cudnnConvolutionStruct next = *convolution;
  const auto take = [dims](const char* what, int least, const int* values, auto& taken) {
    for (int axis = 0; axis < dims; ++axis) {
      if (values[axis] < least) bad_parameter(what, " is ", values[axis], ": at least ", least);
      taken[axis] = values[axis];
    }
  };
  take("padding", 0, paddings, next.paddings);
  take("stride", 1, strides, next.strides);
  take("dilation, counted from 1,", 1, dilations, next.dilations);
  check_range("convolution mode", mode, CUDNN_CROSS_CORRELATION);
  if (compute_type != CUDNN_DATA_FLOAT && compute_type != CUDNN_DATA_DOUBLE &&
      compute_type != CUDNN_DATA_HALF && compute_type != CUDNN_DATA_INT32) {
    bad_parameter("compute type ", compute_type, ": float, double, half or int32");
  }
  next.dims = dims;
  next.post_paddings = next.paddings;
  next.mode = mode;
  next.compute_type = compute_type;
  *convolution = next;
}

}  // namespace
}  // namespace mucudnn::host

using namespace mucudnn::host;

extern "C" {

MUCUDNN_DEFINE_DESCRIPTOR(Convolution, "the convolution descriptor")

cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t convolution, int pad_h, int pad_w,
                                              int stride_h, int stride_w, int dilation_h, int dilation_w,
                                              cudnnConvolutionMode_t mode, cudnnDataType_t compute_type) {
  const int paddings[] = {pad_h, pad_w};
  const int strides[] = {stride_h, stride_w};
  const int dilations[] = {dilation_h, dilation_w};
  return guarded([&] { set(convolution, 2, paddings, strides, dilations, mode, compute_type); });
}

cudnnStatus_t cudnnGetConvolution2dDescriptor(cudnnConvolutionDescriptor_t convolution, int* pad_h,
                                              int* pad_w, int* stride_h, int* stride_w, int* dilation_h,
                                              int* dilation_w, cudnnConvolutionMode_t* mode,
                                              cudnnDataType_t* compute_type) {
  return reading([&] {
    require(
        "the convolution descriptor, pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w, mode, "
        "compute_type",
        {convolution, pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w, mode, compute_type});
    write_each(convolution->paddings, {pad_h, pad_w});
    write_each(convolution->strides, {stride_h, stride_w});
    write_each(convolution->dilations, {dilation_h, dilation_w});
    *mode = convolution->mode;
    *compute_type = convolution->compute_type;
  });
}

cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t convolution, int dims,
                                              const int* paddings, const int* strides, const int* dilations,
                                              cudnnConvolutionMode_t mode, cudnnDataType_t compute_type) {
  return guarded([&] { set(convolution, dims, paddings, strides, dilations, mode, compute_type); });
}

cudnnStatus_t cudnnGetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t convolution, int requested,
                                              int* dims, int* paddings, int* strides, int* dilations,
                                              cudnnConvolutionMode_t* mode, cudnnDataType_t* compute_type) {
  return reading([&] {
    require("the convolution descriptor, dims, paddings, strides, dilations, mode, compute_type",
            {convolution, dims, paddings, strides, dilations, mode, compute_type});
    check_dims(requested);
    *dims = convolution->dims;
    const int count = std::min(requested, convolution->dims);
    std::copy_n(convolution->paddings.begin(), count, paddings);
    std::copy_n(convolution->strides.begin(), count, strides);
    std::copy_n(convolution->dilations.begin(), count, dilations);
    *mode = convolution->mode;
    *compute_type = convolution->compute_type;
  });
}

MUCUDNN_DEFINE_MEMBER(ConvolutionGroupCount, Convolution, "the convolution descriptor", int, groups,
                      if (groups < 1) bad_parameter(groups, " groups: at least 1"))
MUCUDNN_DEFINE_MEMBER(ConvolutionMathType, Convolution, "the convolution descriptor", cudnnMathType_t, math,
                      check_range("math type", math, CUDNN_FMA_MATH))
MUCUDNN_DEFINE_MEMBER(ConvolutionReorderType, Convolution, "the convolution descriptor", cudnnReorderType_t,
                      reorder, check_range("reorder type", reorder, CUDNN_NO_REORDER))

}  // extern "C"
