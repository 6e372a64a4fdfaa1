#include "cudnn/descriptors.hpp"

#include <limits>
#include <vector>

#include "core/tensors.hpp"
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
  switch (type) {
    case CUDNN_DATA_FLOAT:
      return DataType::f32;
    case CUDNN_DATA_DOUBLE:
      return DataType::f64;
    case CUDNN_DATA_HALF:
      return DataType::f16;
    case CUDNN_DATA_BFLOAT16:
      return DataType::bf16;
    default:
      return std::nullopt;
  }
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

std::vector<int> narrow(const std::vector<std::int64_t>& numbers) {
  std::vector<int> narrowed;
  for (const std::int64_t number : numbers) narrowed.push_back(static_cast<int>(number));
  return narrowed;
}

// Throws CallFailed if one sample has more elements than cuDNN's 32-bit strides can express.
std::vector<int> narrow_strides(const std::vector<std::int64_t>& sizes_in_memory, Layout layout) {
  const std::vector<std::int64_t> strides = packed_strides(sizes_in_memory, layout);
  if (strides[0] > std::numeric_limits<int>::max()) {
    throw CallFailed(
        "cudnnSetTensorNdDescriptor", CUDNN_STATUS_NOT_SUPPORTED, "CUDNN_STATUS_NOT_SUPPORTED",
        "one sample has " + std::to_string(strides[0]) + " elements, cuDNN takes up to 2147483647");
  }
  return narrow(strides);
}

}  // namespace

Descriptors::Descriptors(const Library& c, const Problem& p, const ChannelPitch& pitch)
    : x(c, c.cudnnCreateTensorDescriptor, c.cudnnDestroyTensorDescriptor),
      y(c, c.cudnnCreateTensorDescriptor, c.cudnnDestroyTensorDescriptor),
      w(c, c.cudnnCreateFilterDescriptor, c.cudnnDestroyFilterDescriptor),
      convolution(c, c.cudnnCreateConvolutionDescriptor, c.cudnnDestroyConvolutionDescriptor) {
  const auto set_tensor = [&](cudnnTensorDescriptor_t descriptor, std::vector<std::int64_t> sizes,
                              std::int64_t channels, DataType type, Layout layout) {
    const std::vector<int> narrow_sizes = narrow(sizes);
    sizes[1] = channels;
    const std::vector<int> strides = narrow_strides(sizes, layout);
    c.check(c.cudnnSetTensorNdDescriptor(descriptor, cudnn_type(type), 2 + p.dims, narrow_sizes.data(),
                                         strides.data()),
            "cudnnSetTensorNdDescriptor");
  };
  set_tensor(x, x_sizes(p), pitch.of_x(p), p.data_type, p.layout);
  set_tensor(y, y_sizes(p), pitch.of_y(p), p.type_of_y(), p.layout_of_y());
  const auto format = p.layout_of_w() == Layout::nhwc ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
  c.check(
      c.cudnnSetFilterNdDescriptor(w, cudnn_type(p.data_type), format, 2 + p.dims, narrow(w_sizes(p)).data()),
      "cudnnSetFilterNdDescriptor");
  const auto spatial = [&](const Problem::Sizes& sizes) { return narrow(spatial_sizes(p, sizes)); };
  c.check(c.cudnnSetConvolutionNdDescriptor(
              convolution, p.dims, spatial(p.padding).data(), spatial(p.stride).data(),
              spatial(p.dilation).data(), CUDNN_CROSS_CORRELATION,
              p.data_type == DataType::f64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT),
          "cudnnSetConvolutionNdDescriptor");
  c.check(c.cudnnSetConvolutionGroupCount(convolution, static_cast<int>(p.groups)),
          "cudnnSetConvolutionGroupCount");
  c.check(c.cudnnSetConvolutionMathType(convolution, cudnn_math(p.math)), "cudnnSetConvolutionMathType");
}

}  // namespace mucudnn
