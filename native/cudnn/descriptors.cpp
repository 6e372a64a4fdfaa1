#include "cudnn/descriptors.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "core/tensors.hpp"
#include "cudnn/engine.hpp"

namespace mucudnn {

namespace {

std::vector<int> narrow(const std::vector<std::int64_t>& numbers) {
  std::vector<int> narrowed;
  for (const std::int64_t number : numbers) narrowed.push_back(static_cast<int>(number));
  return narrowed;
}

// Throws CallFailed if one sample has more elements than cuDNN's 32-bit strides can express. A tile may
// belong to a larger sample, because no address depends on the stride of an axis of size 1.
std::vector<int> narrow_strides(const std::vector<std::int64_t>& sizes_in_memory, Layout layout,
                                bool is_tile) {
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  std::vector<std::int64_t> strides = packed_strides(sizes_in_memory, layout);
  for (std::size_t axis = 0; axis < strides.size(); ++axis) {
    if (is_tile && sizes_in_memory[axis] == 1) strides[axis] = std::min(strides[axis], kMost);
  }
  const std::int64_t most = *std::max_element(strides.begin(), strides.end());
  if (most > kMost) {
    throw CallFailed("cudnnSetTensorNdDescriptor", CUDNN_STATUS_NOT_SUPPORTED, "CUDNN_STATUS_NOT_SUPPORTED",
                     "one sample has " + std::to_string(most) + " elements, cuDNN takes up to 2147483647");
  }
  return narrow(strides);
}

}  // namespace

Descriptors::Descriptors(const Library& c, const Problem& p, const Pitch& pitch)
    : x(c, c.cudnnCreateTensorDescriptor, c.cudnnDestroyTensorDescriptor),
      y(c, c.cudnnCreateTensorDescriptor, c.cudnnDestroyTensorDescriptor),
      w(c, c.cudnnCreateFilterDescriptor, c.cudnnDestroyFilterDescriptor),
      convolution(c, c.cudnnCreateConvolutionDescriptor, c.cudnnDestroyConvolutionDescriptor) {
  const auto set_tensor = [&](cudnnTensorDescriptor_t descriptor, const std::vector<std::int64_t>& sizes,
                              std::int64_t channels, std::int64_t rows, DataType type, Layout layout) {
    const std::vector<int> strides =
        narrow_strides(pitch.in_memory(sizes, channels, rows), layout, rows != 0);
    c.check(c.cudnnSetTensorNdDescriptor(descriptor, cudnn_type(type), 2 + p.dims, narrow(sizes).data(),
                                         strides.data()),
            "cudnnSetTensorNdDescriptor");
  };
  set_tensor(x, x_sizes(p), pitch.of_x(p), pitch.x_rows, p.data_type, p.layout);
  set_tensor(y, y_sizes(p), pitch.of_y(p), pitch.y_rows, p.type_of_y(), p.layout_of_y());
  const auto format = p.layout_of_w() == Layout::nhwc ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
  c.check(
      c.cudnnSetFilterNdDescriptor(w, cudnn_type(p.data_type), format, 2 + p.dims, narrow(w_sizes(p)).data()),
      "cudnnSetFilterNdDescriptor");
  const auto spatial = [&](const Problem::Sizes& sizes) { return narrow(spatial_sizes(p, sizes)); };
  c.check(c.cudnnSetConvolutionNdDescriptor(convolution, p.dims, spatial(p.padding).data(),
                                            spatial(p.stride).data(), spatial(p.dilation).data(),
                                            CUDNN_CROSS_CORRELATION, compute_type_of(p.data_type)),
          "cudnnSetConvolutionNdDescriptor");
  c.check(c.cudnnSetConvolutionGroupCount(convolution, static_cast<int>(p.groups)),
          "cudnnSetConvolutionGroupCount");
  c.check(c.cudnnSetConvolutionMathType(convolution, cudnn_math(p)), "cudnnSetConvolutionMathType");
}

}  // namespace mucudnn
