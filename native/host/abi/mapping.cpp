#include "host/abi/mapping.hpp"

#include <algorithm>

namespace mucudnn::host {
namespace {

void require_set(const char* name, int dims) {
  if (dims == 0) bad_parameter(std::string("the descriptor of ") + name + " was never set");
}

// Packed in this layout. A dimension of size 1 is never stepped over, so that its stride does not count.
bool is_packed(const cudnnTensorStruct& tensor, Layout layout) {
  const bool channels_last = layout == Layout::nhwc;
  std::int64_t step = 1;
  const auto fits = [&](int axis) {
    const bool same = tensor.sizes[axis] == 1 || tensor.strides[axis] == step;
    step *= tensor.sizes[axis];
    return same;
  };
  bool packed = !channels_last || fits(1);
  for (int axis = tensor.dims - 1; axis >= 2; --axis) packed = fits(axis) && packed;
  packed = (channels_last || fits(1)) && packed;
  return fits(0) && packed;
}

// With one channel, or with a kernel of one point, a filter is the same in both layouts.
bool is_packed(const cudnnFilterStruct& filter, Layout layout) {
  const auto begin = filter.sizes.begin();
  const bool is_point = std::all_of(begin + 2, begin + filter.dims, [](int size) { return size == 1; });
  const auto format = layout == Layout::nhwc ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
  return filter.format == format || filter.sizes[1] == 1 || is_point;
}

Layout layout_of(const Descriptors& d) {
  for (const Layout layout : {Layout::nchw, Layout::nhwc}) {
    if (is_packed(*d.x, layout) && is_packed(*d.w, layout) && is_packed(*d.y, layout)) return layout;
  }
  not_supported("x, w and y must be packed, all NCHW or all NHWC");
}

DataType data_type_of(const Descriptors& d) {
  if (d.x->type != d.y->type || d.x->type != d.w->type)
    bad_parameter("x, w and y differ in their data types");
  const cudnnDataType_t needed = d.x->type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
  if (d.convolution->compute_type != needed) {
    not_supported("the compute type must be double for double data, float for all others");
  }
  switch (d.x->type) {
    case CUDNN_DATA_FLOAT:
      return DataType::f32;
    case CUDNN_DATA_DOUBLE:
      return DataType::f64;
    case CUDNN_DATA_HALF:
      return DataType::f16;
    case CUDNN_DATA_BFLOAT16:
      return DataType::bf16;
    default:
      not_supported("the host engine convolves float, double, half and bfloat16 only");
  }
}

}  // namespace

std::array<int, CUDNN_DIM_MAX> output_sizes(cudnnConvolutionDescriptor_t convolution,
                                            cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w) {
  require(
      {{"the convolution descriptor", convolution}, {"the descriptor of x", x}, {"the descriptor of w", w}});
  require_set("x", x->dims);
  require_set("w", w->dims);
  if (x->dims != w->dims || x->dims != convolution->dims + 2) {
    bad_parameter("x has " + std::to_string(x->dims) + " dimensions, w " + std::to_string(w->dims) +
                  " and the convolution " + std::to_string(convolution->dims) + ", which must be 2 fewer");
  }
  if (x->sizes[1] != std::int64_t{w->sizes[1]} * convolution->groups) {
    bad_parameter("x has " + std::to_string(x->sizes[1]) + " channels, w takes " +
                  std::to_string(w->sizes[1]) + " in each of " + std::to_string(convolution->groups) +
                  " groups");
  }
  std::array<int, CUDNN_DIM_MAX> output{x->sizes[0], w->sizes[0]};
  for (int axis = 0; axis < convolution->dims; ++axis) {
    const std::int64_t reach = std::int64_t{w->sizes[2 + axis] - 1} * convolution->dilations[axis] + 1;
    const std::int64_t room = x->sizes[2 + axis] + 2 * std::int64_t{convolution->paddings[axis]} - reach;
    const std::int64_t size = room < 0 ? 0 : room / convolution->strides[axis] + 1;
    if (size < 1 || size > 0x7fffffff) {
      bad_parameter("dimension " + std::to_string(2 + axis) + " of y would have size " +
                    std::to_string(size));
    }
    output[2 + axis] = static_cast<int>(size);
  }
  return output;
}

Problem problem_of(const Descriptors& d) {
  require({{"the descriptor of y", d.y}});
  const auto output = output_sizes(d.convolution, d.x, d.w);
  require_set("y", d.y->dims);
  const int dims = d.convolution->dims;
  if (d.y->dims != d.x->dims) {
    bad_parameter("y has " + std::to_string(d.y->dims) + " dimensions, x " + std::to_string(d.x->dims));
  }
  for (int axis = 0; axis < d.y->dims; ++axis) {
    if (d.y->sizes[axis] == output[axis]) continue;
    bad_parameter("dimension " + std::to_string(axis) + " of y has size " + std::to_string(d.y->sizes[axis]) +
                  ", the convolution gives " + std::to_string(output[axis]));
  }

  Problem problem;
  problem.data_type = data_type_of(d);
  if (dims != 2 && dims != 3) not_supported("the host engine convolves in 2 or 3 spatial dimensions only");
  if (d.convolution->mode != CUDNN_CROSS_CORRELATION) {
    not_supported("the host engine has CUDNN_CROSS_CORRELATION only: flip the filter for CUDNN_CONVOLUTION");
  }
  problem.layout = layout_of(d);
  problem.dims = dims;
  problem.groups = d.convolution->groups;
  problem.mini_batch = d.x->sizes[0];
  problem.in_channels = d.x->sizes[1];
  problem.out_channels = d.w->sizes[0];
  for (int axis = 0; axis < dims; ++axis) {
    const int to = 3 - dims + axis;
    problem.input[to] = d.x->sizes[2 + axis];
    problem.output[to] = d.y->sizes[2 + axis];
    problem.kernel[to] = d.w->sizes[2 + axis];
    problem.stride[to] = d.convolution->strides[axis];
    problem.padding[to] = d.convolution->paddings[axis];
    problem.dilation[to] = d.convolution->dilations[axis];
  }
  validate(problem);
  return problem;
}

}  // namespace mucudnn::host

using mucudnn::host::bad_parameter;
using mucudnn::host::guarded;
using mucudnn::host::output_sizes;
using mucudnn::host::require;

extern "C" {

cudnnStatus_t cudnnGetConvolution2dForwardOutputDim(cudnnConvolutionDescriptor_t convolution,
                                                    cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                                                    int* n, int* c, int* h, int* width) {
  return guarded([&] {
    require({{"n", n}, {"c", c}, {"h", h}, {"w", width}});
    const auto output = output_sizes(convolution, x, w);
    if (x->dims != 4) bad_parameter("x has " + std::to_string(x->dims) + " dimensions, not 4");
    *n = output[0];
    *c = output[1];
    *h = output[2];
    *width = output[3];
  });
}

cudnnStatus_t cudnnGetConvolutionNdForwardOutputDim(cudnnConvolutionDescriptor_t convolution,
                                                    cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                                                    int dims, int* sizes) {
  return guarded([&] {
    require({{"sizes", sizes}});
    const auto output = output_sizes(convolution, x, w);
    if (dims < 0 || dims > x->dims) {
      bad_parameter(std::to_string(dims) + " sizes of " + std::to_string(x->dims) + " requested");
    }
    std::copy_n(output.begin(), dims, sizes);
  });
}

}  // extern "C"
