#include "host/abi/mapping.hpp"

#include <algorithm>
#include <limits>

#include "core/tensors.hpp"

namespace mucudnn::host {
namespace {

void require_set(const char* name, int dims) {
  if (dims == 0) bad_parameter(std::string("the descriptor of ") + name + " was never set");
}

bool is_packed(const cudnnTensorStruct& tensor, Layout layout) {
  return mucudnn::is_packed(tensor.sizes, tensor.strides, tensor.dims, layout);
}

// Returns the channels that a tensor has in memory; nothing if the engine's algorithms cannot address it.
std::optional<std::int64_t> channels_in_memory(const cudnnTensorStruct& tensor, Layout layout) {
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();  // the most that BLAS takes
  const auto channels = mucudnn::channels_in_memory(tensor.sizes, tensor.strides, tensor.dims, layout);
  return channels && *channels <= kMost ? channels : std::nullopt;
}

DataType data_type_of(cudnnDataType_t type, cudnnDataType_t compute_type) {
  if (compute_type != (type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT)) {
    not_supported("the compute type must be double for double data, float for all others");
  }
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
      not_supported("the host engine convolves float, double, half and bfloat16 only");
  }
}

// Returns the sizes of y that the legacy API's descriptors give.
std::array<std::int64_t, CUDNN_DIM_MAX> output_sizes_of(cudnnConvolutionDescriptor_t convolution,
                                                        cudnnTensorDescriptor_t x,
                                                        cudnnFilterDescriptor_t w) {
  require(
      {{"the convolution descriptor", convolution}, {"the descriptor of x", x}, {"the descriptor of w", w}});
  require_set("x", x->dims);
  require_set("w", w->dims);
  return output_sizes(*convolution, *x, tensor_of(*w));
}

}  // namespace

cudnnTensorStruct tensor_of(const cudnnFilterStruct& filter) {
  cudnnTensorStruct tensor;
  tensor.type = filter.type;
  tensor.dims = filter.dims;
  std::copy(filter.sizes.begin(), filter.sizes.end(), tensor.sizes.begin());
  std::int64_t step = 1;
  for_each_axis(filter.dims, filter.format == CUDNN_TENSOR_NHWC ? Layout::nhwc : Layout::nchw, [&](int axis) {
    tensor.strides[axis] = step;
    if (__builtin_mul_overflow(step, tensor.sizes[axis], &step)) {
      not_supported("a filter of more than 9223372036854775807 elements");
    }
  });
  return tensor;
}

std::array<std::int64_t, CUDNN_DIM_MAX> output_sizes(const cudnnConvolutionStruct& convolution,
                                                     const cudnnTensorStruct& x, const cudnnTensorStruct& w) {
  if (x.dims != w.dims || x.dims != convolution.dims + 2) {
    bad_parameter("x has " + std::to_string(x.dims) + " dimensions, w " + std::to_string(w.dims) +
                  " and the convolution " + std::to_string(convolution.dims) + ", which must be 2 fewer");
  }
  if (x.sizes[1] != w.sizes[1] * convolution.groups) {
    bad_parameter("x has " + std::to_string(x.sizes[1]) + " channels, w takes " + std::to_string(w.sizes[1]) +
                  " in each of " + std::to_string(convolution.groups) + " groups");
  }
  std::array<std::int64_t, CUDNN_DIM_MAX> output{x.sizes[0], w.sizes[0]};
  for (int axis = 0; axis < convolution.dims; ++axis) {
    const std::int64_t reach = (w.sizes[2 + axis] - 1) * convolution.dilations[axis] + 1;
    const std::int64_t room = x.sizes[2 + axis] + std::int64_t{convolution.paddings[axis]} +
                              convolution.post_paddings[axis] - reach;
    const std::int64_t size = room < 0 ? 0 : room / convolution.strides[axis] + 1;
    if (size < 1 || size > 0x7fffffff) {
      bad_parameter("dimension " + std::to_string(2 + axis) + " of y would have size " +
                    std::to_string(size));
    }
    output[2 + axis] = size;
  }
  return output;
}

void check_output(const cudnnTensorStruct& y, int dims,
                  const std::array<std::int64_t, CUDNN_DIM_MAX>& sizes) {
  if (y.dims != dims) {
    bad_parameter("y has " + std::to_string(y.dims) + " dimensions, x " + std::to_string(dims));
  }
  for (int axis = 0; axis < dims; ++axis) {
    if (y.sizes[axis] == sizes[axis]) continue;
    bad_parameter("dimension " + std::to_string(axis) + " of y has size " + std::to_string(y.sizes[axis]) +
                  ", the convolution gives " + std::to_string(sizes[axis]));
  }
}

Problem problem_of(const cudnnConvolutionStruct& convolution, const cudnnTensorStruct& x,
                   const cudnnTensorStruct& w, const cudnnTensorStruct& y) {
  check_output(y, x.dims, output_sizes(convolution, x, w));
  if (x.type != y.type || x.type != w.type) bad_parameter("x, w and y differ in their data types");
  Problem problem;
  problem.data_type = data_type_of(x.type, convolution.compute_type);
  problem.dims = convolution.dims;
  if (problem.dims != 2 && problem.dims != 3) {
    not_supported("the host engine convolves in 2 or 3 spatial dimensions only");
  }
  if (convolution.mode != CUDNN_CROSS_CORRELATION) {
    not_supported("the host engine has CUDNN_CROSS_CORRELATION only: flip the filter for CUDNN_CONVOLUTION");
  }
  if (convolution.paddings != convolution.post_paddings) {
    not_supported("the host engine pads the same before and after");
  }
  const auto all_have = [&](Layout layout) {
    return channels_in_memory(x, layout) && is_packed(w, layout) && channels_in_memory(y, layout);
  };
  if (!all_have(Layout::nchw) && !all_have(Layout::nhwc)) {
    not_supported("x, w and y must be packed, all NCHW or all NHWC; x and y may be some channels of others");
  }
  problem.layout = all_have(Layout::nchw) ? Layout::nchw : Layout::nhwc;
  problem.groups = convolution.groups;
  problem.mini_batch = x.sizes[0];
  problem.in_channels = x.sizes[1];
  problem.out_channels = w.sizes[0];
  for (int axis = 0; axis < problem.dims; ++axis) {
    const int to = 3 - problem.dims + axis;
    problem.input[to] = x.sizes[2 + axis];
    problem.output[to] = y.sizes[2 + axis];
    problem.kernel[to] = w.sizes[2 + axis];
    problem.stride[to] = convolution.strides[axis];
    problem.padding[to] = convolution.paddings[axis];
    problem.dilation[to] = convolution.dilations[axis];
  }
  validate(problem);
  return problem;
}

Problem problem_of(const Descriptors& d) {
  require({{"the descriptor of y", d.y}});
  output_sizes_of(d.convolution, d.x, d.w);  // throws and names the descriptor that is missing
  require_set("y", d.y->dims);
  return problem_of(*d.convolution, *d.x, tensor_of(*d.w), *d.y);
}

ChannelPitch pitch_of(const Problem& problem, const cudnnTensorStruct& x, const cudnnTensorStruct& y) {
  return {channels_in_memory(x, problem.layout).value(), channels_in_memory(y, problem.layout).value()};
}

std::optional<Algorithm> engine_algorithm(Pass pass, std::int64_t number) {
  if (number < 0 || number >= algorithm_count(pass)) return std::nullopt;
  switch (pass) {
    case Pass::forward:
      return engine_algorithm<Pass::forward>(static_cast<cudnnConvolutionFwdAlgo_t>(number));
    case Pass::backward_data:
      return engine_algorithm<Pass::backward_data>(static_cast<cudnnConvolutionBwdDataAlgo_t>(number));
    case Pass::backward_filter:
      return engine_algorithm<Pass::backward_filter>(static_cast<cudnnConvolutionBwdFilterAlgo_t>(number));
  }
  return std::nullopt;
}

int algorithm_count(Pass pass) {
  constexpr int kCounts[] = {Legacy<Pass::forward>::kCount, Legacy<Pass::backward_data>::kCount,
                             Legacy<Pass::backward_filter>::kCount};
  return kCounts[static_cast<int>(pass)];
}

}  // namespace mucudnn::host

using mucudnn::host::bad_parameter;
using mucudnn::host::guarded;
using mucudnn::host::output_sizes_of;
using mucudnn::host::require;

extern "C" {

cudnnStatus_t cudnnGetConvolution2dForwardOutputDim(cudnnConvolutionDescriptor_t convolution,
                                                    cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                                                    int* n, int* c, int* h, int* width) {
  return guarded([&] {
    require({{"n", n}, {"c", c}, {"h", h}, {"w", width}});
    const auto output = output_sizes_of(convolution, x, w);
    if (x->dims != 4) bad_parameter("x has " + std::to_string(x->dims) + " dimensions, not 4");
    *n = static_cast<int>(output[0]);
    *c = static_cast<int>(output[1]);
    *h = static_cast<int>(output[2]);
    *width = static_cast<int>(output[3]);
  });
}

cudnnStatus_t cudnnGetConvolutionNdForwardOutputDim(cudnnConvolutionDescriptor_t convolution,
                                                    cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                                                    int dims, int* sizes) {
  return guarded([&] {
    require({{"sizes", sizes}});
    const auto output = output_sizes_of(convolution, x, w);
    if (dims < 0 || dims > x->dims) {
      bad_parameter(std::to_string(dims) + " sizes of " + std::to_string(x->dims) + " requested");
    }
    std::copy_n(output.begin(), dims, sizes);
  });
}

}  // extern "C"
