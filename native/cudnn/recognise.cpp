#include "cudnn/recognise.hpp"

#include <algorithm>
#include <array>
#include <optional>

#include "core/tensors.hpp"
#include "cudnn/descriptors.hpp"

namespace mucudnn {
namespace {

using Sizes = std::array<int, CUDNN_DIM_MAX>;

struct Tensor {
  cudnnDataType_t type{};
  int dims = 0;
  Sizes sizes{};
  Sizes strides{};
};

struct Filter {
  cudnnDataType_t type{};
  cudnnTensorFormat_t format{};
  int dims = 0;
  Sizes sizes{};
};

struct Convolution {
  int dims = 0;
  Sizes paddings{};
  Sizes strides{};
  Sizes dilations{};
  cudnnConvolutionMode_t mode{};
  cudnnDataType_t compute_type{};
  cudnnMathType_t math{};
  int groups = 0;
};

bool read(const Library& c, cudnnTensorDescriptor_t from, Tensor& to) {
  return from != nullptr &&
         c.cudnnGetTensorNdDescriptor(from, CUDNN_DIM_MAX, &to.type, &to.dims, to.sizes.data(),
                                      to.strides.data()) == CUDNN_STATUS_SUCCESS;
}

bool read(const Library& c, cudnnFilterDescriptor_t from, Filter& to) {
  return from != nullptr && c.cudnnGetFilterNdDescriptor(from, CUDNN_DIM_MAX, &to.type, &to.format, &to.dims,
                                                         to.sizes.data()) == CUDNN_STATUS_SUCCESS;
}

bool read(const Library& c, cudnnConvolutionDescriptor_t from, Convolution& to) {
  return from != nullptr &&
         c.cudnnGetConvolutionNdDescriptor(from, CUDNN_DIM_MAX - 2, &to.dims, to.paddings.data(),
                                           to.strides.data(), to.dilations.data(), &to.mode,
                                           &to.compute_type) == CUDNN_STATUS_SUCCESS &&
         c.cudnnGetConvolutionMathType(from, &to.math) == CUDNN_STATUS_SUCCESS &&
         c.cudnnGetConvolutionGroupCount(from, &to.groups) == CUDNN_STATUS_SUCCESS;
}

bool is_packed(const Tensor& tensor, Layout layout) {
  return mucudnn::is_packed(tensor.sizes, tensor.strides, tensor.dims, layout);
}

// Returns whether the filter is packed in this layout. With one channel, or with a kernel of one point, both
// layouts have the same bytes.
bool is_packed(const Filter& filter, Layout layout) {
  const auto begin = filter.sizes.begin();
  const bool is_point = std::all_of(begin + 2, begin + filter.dims, [](int size) { return size == 1; });
  const auto format = layout == Layout::nhwc ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
  return filter.format == format || filter.sizes[1] == 1 || is_point;
}

// If the tensors fit both layouts, the filter's format decides.
std::optional<Layout> layout_of(const Tensor& x, const Filter& w, const Tensor& y) {
  const bool prefers_last = w.format == CUDNN_TENSOR_NHWC;
  for (const Layout layout :
       {prefers_last ? Layout::nhwc : Layout::nchw, prefers_last ? Layout::nchw : Layout::nhwc}) {
    if (is_packed(x, layout) && is_packed(w, layout) && is_packed(y, layout)) return layout;
  }
  return std::nullopt;
}

Obstacle fill(const Tensor& x, const Filter& w, const Convolution& c, const Tensor& y, Problem& problem) {
  if (c.dims != 2 && c.dims != 3) return "neither 2 nor 3 spatial dimensions";
  if (x.dims != c.dims + 2 || w.dims != x.dims || y.dims != x.dims) return "descriptors disagree";
  if (c.mode != CUDNN_CROSS_CORRELATION) return "the mode is CUDNN_CONVOLUTION";
  if (x.type != w.type || x.type != y.type) return "mixed data types";
  const auto type = data_type_of(x.type);
  if (!type) return "the data type";
  if (c.compute_type != compute_type_of(*type)) return "the compute type";
  const auto math = math_of(c.math);
  if (!math) return "the math type";
  const auto layout = layout_of(x, w, y);
  if (!layout) return "tensors are not packed";
  if (x.sizes[0] != y.sizes[0] || w.sizes[0] != y.sizes[1] ||
      x.sizes[1] != std::int64_t{w.sizes[1]} * c.groups) {
    return "descriptors disagree";
  }
  problem.data_type = *type;
  problem.math = *math;
  problem.layout = *layout;
  problem.dims = c.dims;
  problem.groups = c.groups;
  set_tensor_sizes(problem, x.sizes, w.sizes, y.sizes);
  set_window(problem, c.strides, c.paddings, c.dilations);
  return {};
}

}  // namespace

Recognised recognise(const Library& library, const LegacyDescriptors& descriptors, Pass pass) noexcept {
  Tensor x;
  Tensor y;
  Filter w;
  Convolution convolution;
  Recognised recognised;
  recognised.kernel.pass = pass;
  if (!read(library, descriptors.x, x) || !read(library, descriptors.w, w) ||
      !read(library, descriptors.convolution, convolution) || !read(library, descriptors.y, y)) {
    recognised.obstacle = "a descriptor cannot be read";
  } else {
    recognised.obstacle = fill(x, w, convolution, y, recognised.kernel.problem);
  }
  return recognised;
}

bool same_tensor(const Library& library, cudnnTensorDescriptor_t a, cudnnTensorDescriptor_t b) noexcept {
  Tensor first;
  Tensor second;
  return read(library, a, first) && read(library, b, second) && first.type == second.type &&
         first.dims == second.dims && first.sizes == second.sizes && first.strides == second.strides;
}

}  // namespace mucudnn
