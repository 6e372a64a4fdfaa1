#include "cudnn/descriptors.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "cudnn/engine.hpp"

namespace mucudnn {

cudnnDataType_t cudnn_type(DataType type) {
  switch (type) {
    case DataType::f64:
      return CUDNN_DATA_DOUBLE;
    case DataType::f16:
      return CUDNN_DATA_HALF;
    case DataType::bf16:
      return CUDNN_DATA_BFLOAT16;
    case DataType::f32:
      break;
  }
  return CUDNN_DATA_FLOAT;
}

std::optional<DataType> data_type_of(cudnnDataType_t type) noexcept {
  for (const DataType known : {DataType::f32, DataType::f64, DataType::f16, DataType::bf16}) {
    if (cudnn_type(known) == type) return known;
  }
  return std::nullopt;
}

namespace {

cudnnMathType_t cudnn_math(Math math) {
  switch (math) {
    case Math::tf32:
      return CUDNN_TENSOR_OP_MATH;
    case Math::strict:
      return CUDNN_FMA_MATH;
    case Math::standard:
      break;
  }
  return CUDNN_DEFAULT_MATH;
}

std::array<int, 5> tensor_sizes(std::int64_t first, std::int64_t second, const Problem::Sizes& sizes,
                                int dims) {
  std::array<int, 5> all{static_cast<int>(first), static_cast<int>(second)};
  for (int axis = 0; axis < dims; ++axis) all[2 + axis] = static_cast<int>(sizes[3 - dims + axis]);
  return all;
}

// Throws CallFailed if one sample has more elements than cuDNN's 32-bit strides can express.
std::array<int, 5> packed_strides(const std::array<int, 5>& sizes, int dims, Layout layout) {
  std::array<std::int64_t, 5> strides{};
  std::int64_t step = layout == Layout::nhwc ? sizes[1] : 1;
  for (int axis = 1 + dims; axis >= 2; --axis) {
    strides[axis] = step;
    step *= sizes[axis];
  }
  strides[1] = layout == Layout::nhwc ? 1 : step;
  strides[0] = layout == Layout::nhwc ? step : step * sizes[1];
  if (strides[0] > std::numeric_limits<int>::max()) {
    throw CallFailed(
        "cudnnSetTensorNdDescriptor", CUDNN_STATUS_NOT_SUPPORTED, "CUDNN_STATUS_NOT_SUPPORTED",
        "one sample has " + std::to_string(strides[0]) + " elements, cuDNN takes up to 2147483647");
  }
  std::array<int, 5> narrow{};
  std::transform(strides.begin(), strides.end(), narrow.begin(),
                 [](std::int64_t s) { return static_cast<int>(s); });
  return narrow;
}

}  // namespace

Descriptors::Descriptors(const Library& c, const Problem& p)
    : x(c, c.cudnnCreateTensorDescriptor, c.cudnnDestroyTensorDescriptor),
      y(c, c.cudnnCreateTensorDescriptor, c.cudnnDestroyTensorDescriptor),
      w(c, c.cudnnCreateFilterDescriptor, c.cudnnDestroyFilterDescriptor),
      convolution(c, c.cudnnCreateConvolutionDescriptor, c.cudnnDestroyConvolutionDescriptor) {
  const cudnnDataType_t type = cudnn_type(p.data_type);
  const auto set_tensor = [&](cudnnTensorDescriptor_t descriptor, std::int64_t channels,
                              const Problem::Sizes& sizes) {
    const auto all = tensor_sizes(p.mini_batch, channels, sizes, p.dims);
    const auto strides = packed_strides(all, p.dims, p.layout);
    c.check(c.cudnnSetTensorNdDescriptor(descriptor, type, 2 + p.dims, all.data(), strides.data()),
            "cudnnSetTensorNdDescriptor");
  };
  set_tensor(x, p.in_channels, p.input);
  set_tensor(y, p.out_channels, p.output);
  const auto filter = tensor_sizes(p.out_channels, p.in_channels / p.groups, p.kernel, p.dims);
  c.check(
      c.cudnnSetFilterNdDescriptor(w, type, p.layout == Layout::nhwc ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW,
                                   2 + p.dims, filter.data()),
      "cudnnSetFilterNdDescriptor");
  const auto padding = tensor_sizes(0, 0, p.padding, p.dims);
  const auto stride = tensor_sizes(0, 0, p.stride, p.dims);
  const auto dilation = tensor_sizes(0, 0, p.dilation, p.dims);
  c.check(c.cudnnSetConvolutionNdDescriptor(
              convolution, p.dims, &padding[2], &stride[2], &dilation[2], CUDNN_CROSS_CORRELATION,
              p.data_type == DataType::f64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT),
          "cudnnSetConvolutionNdDescriptor");
  c.check(c.cudnnSetConvolutionGroupCount(convolution, static_cast<int>(p.groups)),
          "cudnnSetConvolutionGroupCount");
  c.check(c.cudnnSetConvolutionMathType(convolution, cudnn_math(p.math)), "cudnnSetConvolutionMathType");
}

}  // namespace mucudnn
