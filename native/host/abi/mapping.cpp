#include "host/abi/mapping.hpp"

#include <algorithm>
#include <iterator>
#include <limits>

#include "core/tensors.hpp"

namespace mucudnn::host {
namespace {

// The enumerators of a pass for the engine's algorithms, in the order of Algorithm, and their number. The
// backward enumerations have no GEMM: their ALGO_1 is implicit GEMM, their ALGO_0 explicit GEMM.
struct LegacyAlgorithms {
  int algorithms[4];
  int count;
};

// The index is the pass.
constexpr LegacyAlgorithms kLegacyAlgorithms[] = {
    {{CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, CUDNN_CONVOLUTION_FWD_ALGO_GEMM,
      CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED, CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING},
     CUDNN_CONVOLUTION_FWD_ALGO_COUNT},
    {{CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, CUDNN_CONVOLUTION_BWD_DATA_ALGO_0,
      CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED, CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING},
     CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT},
    {{CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0,
      CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING},
     CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT}};

void require_set(const char* name, int dims) {
  if (dims == 0) bad_parameter("the descriptor of ", name, " was never set");
}

// Returns the sizes that a tensor has in memory; nothing if the engine's algorithms cannot address it.
std::optional<SizesInMemory> sizes_in_memory(const cudnnTensorStruct& tensor, Layout layout) {
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();  // the most that BLAS takes
  const auto sizes = mucudnn::sizes_in_memory(tensor.sizes, tensor.strides, tensor.dims, layout);
  const bool is_tile = sizes && sizes->rows != 0;
  return sizes && sizes->channels <= kMost && (!is_tile || tensor.strides[1] <= kMost) ? sizes : std::nullopt;
}

// Returns the sizes of y that the legacy API's descriptors give.
std::array<std::int64_t, CUDNN_DIM_MAX> output_sizes_of(cudnnConvolutionDescriptor_t convolution,
                                                        cudnnTensorDescriptor_t x,
                                                        cudnnFilterDescriptor_t w) {
  require("the convolution descriptor, the descriptor of x, the descriptor of w", {convolution, x, w});
  require_set("x", x->dims);
  require_set("w", w->dims);
  return output_sizes(*convolution, *x, tensor_of(*w));
}

}  // namespace

DataType data_type_of(cudnnDataType_t type) {
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
      not_supported("the host engine computes in float, double, half and bfloat16 only");
  }
}

cudnnTensorStruct tensor_of(const cudnnFilterStruct& filter) {
  return packed(filter, filter.format == CUDNN_TENSOR_NHWC ? Layout::nhwc : Layout::nchw);
}

cudnnTensorStruct packed(cudnnTensorStruct tensor, Layout layout) {
  std::int64_t step = 1;
  for_each_axis(tensor.dims, layout, [&](int axis) {
    tensor.strides[axis] = step;
    if (__builtin_mul_overflow(step, tensor.sizes[axis], &step)) not_supported("a tensor of 2^63 elements");
  });
  return tensor;
}

bool same_layout(const cudnnTensorStruct& a, const cudnnTensorStruct& b) {
  bool same = a.type == b.type && a.dims == b.dims;
  for (int axis = 0; same && axis < a.dims; ++axis) {
    same = a.sizes[axis] == b.sizes[axis] && (a.sizes[axis] == 1 || a.strides[axis] == b.strides[axis]);
  }
  return same;
}

std::array<std::int64_t, CUDNN_DIM_MAX> output_sizes(const cudnnConvolutionStruct& convolution,
                                                     const cudnnTensorStruct& x, const cudnnTensorStruct& w) {
  if (x.dims != w.dims || x.dims != convolution.dims + 2) {
    bad_parameter("x has ", x.dims, " dimensions, w ", w.dims, " and the convolution ", convolution.dims,
                  ", which must be 2 fewer");
  }
  if (x.sizes[1] != w.sizes[1] * convolution.groups) {
    bad_parameter("x has ", x.sizes[1], " channels, w takes ", w.sizes[1], " in each of ", convolution.groups,
                  " groups");
  }
  std::array<std::int64_t, CUDNN_DIM_MAX> output{x.sizes[0], w.sizes[0]};
  for (int axis = 0; axis < convolution.dims; ++axis) {
    const std::int64_t reach = (w.sizes[2 + axis] - 1) * convolution.dilations[axis] + 1;
    const std::int64_t room = x.sizes[2 + axis] + std::int64_t{convolution.paddings[axis]} +
                              convolution.post_paddings[axis] - reach;
    const std::int64_t size = room < 0 ? 0 : room / convolution.strides[axis] + 1;
    if (size < 1 || size > 0x7fffffff) {
      bad_parameter("dimension ", 2 + axis, " of y would have size ", size);
    }
    output[2 + axis] = size;
  }
  return output;
}

void check_output(const cudnnTensorStruct& y, int dims,
                  const std::array<std::int64_t, CUDNN_DIM_MAX>& sizes) {
  if (y.dims != dims) {
    bad_parameter("y has ", y.dims, " dimensions, x ", dims);
  }
  for (int axis = 0; axis < dims; ++axis) {
    if (y.sizes[axis] == sizes[axis]) continue;
    bad_parameter("dimension ", axis, " of y has size ", y.sizes[axis], ", the convolution gives ",
                  sizes[axis]);
  }
}

Problem problem_of(const cudnnConvolutionStruct& convolution, const cudnnTensorStruct& x,
                   const cudnnTensorStruct& w, const cudnnTensorStruct& y) {
  check_output(y, x.dims, output_sizes(convolution, x, w));
  if (x.type != y.type || x.type != w.type) bad_parameter("x, w and y differ in their data types");
  Problem problem;
  if (convolution.compute_type != (x.type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT)) {
    not_supported("the compute type must be double for double data, float for all others");
  }
  problem.data_type = data_type_of(x.type);
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
    return sizes_in_memory(x, layout) && is_packed(w.sizes, w.strides, w.dims, layout) &&
           sizes_in_memory(y, layout);
  };
  if (!all_have(Layout::nchw) && !all_have(Layout::nhwc)) {
    not_supported(
        "x, w and y must be packed, all NCHW or all NHWC; x and y may be some channels or rows of others");
  }
  problem.layout = all_have(Layout::nchw) ? Layout::nchw : Layout::nhwc;
  problem.groups = convolution.groups;
  set_tensor_sizes(problem, x.sizes, w.sizes, y.sizes);
  set_window(problem, convolution.strides, convolution.paddings, convolution.dilations);
  validate(problem);
  return problem;
}

Kernel kernel_of(const Descriptors& d) {
  require("the descriptor of y", {d.y});
  output_sizes_of(d.convolution, d.x, d.w);  // throws and names the descriptor that is missing
  require_set("y", d.y->dims);
  return {problem_of(*d.convolution, *d.x, tensor_of(*d.w), *d.y), d.pass};
}

Pitch pitch_of(const Problem& problem, const cudnnTensorStruct& x, const cudnnTensorStruct& y) {
  const SizesInMemory of_x = sizes_in_memory(x, problem.layout).value();
  const SizesInMemory of_y = sizes_in_memory(y, problem.layout).value();
  return {of_x.channels, of_y.channels, of_x.rows, of_y.rows};
}

Tensors tensors_of(const Descriptors& descriptors, const Problem& problem, const void* x, const void* w,
                   const void* y) {
  require("the data of x, the data of w, the data of y", {x, w, y});
  // The engine's Tensors have one type for the inputs and outputs of all passes.
  return {const_cast<void*>(x), const_cast<void*>(w), const_cast<void*>(y),
          pitch_of(problem, *descriptors.x, *descriptors.y)};
}

std::optional<Algorithm> engine_algorithm(Pass pass, std::int64_t number) {
  const auto& algorithms = kLegacyAlgorithms[static_cast<int>(pass)].algorithms;
  const auto* const place = std::find(std::begin(algorithms), std::end(algorithms), number);
  if (place == std::end(algorithms)) return std::nullopt;
  return static_cast<Algorithm>(place - algorithms);
}

int algorithm_count(Pass pass) { return kLegacyAlgorithms[static_cast<int>(pass)].count; }

std::optional<Algorithm> legacy_algorithm(Pass pass, unsigned number) {
  if (number >= static_cast<unsigned>(algorithm_count(pass))) {
    bad_parameter("there is no algorithm ", number);
  }
  return engine_algorithm(pass, number);
}

}  // namespace mucudnn::host

using namespace mucudnn::host;

extern "C" {

cudnnStatus_t cudnnGetConvolution2dForwardOutputDim(cudnnConvolutionDescriptor_t convolution,
                                                    cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                                                    int* n, int* c, int* h, int* width) {
  return guarded([&] {
    require("n, c, h, w", {n, c, h, width});
    const auto output = output_sizes_of(convolution, x, w);
    if (x->dims != 4) bad_parameter("x has ", x->dims, " dimensions, not 4");
    write_each(output, {n, c, h, width});
  });
}

cudnnStatus_t cudnnGetConvolutionNdForwardOutputDim(cudnnConvolutionDescriptor_t convolution,
                                                    cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                                                    int dims, int* sizes) {
  return guarded([&] {
    require("sizes", {sizes});
    const auto output = output_sizes_of(convolution, x, w);
    if (dims < 0 || dims > x->dims) {
      bad_parameter(dims, " sizes of ", x->dims, " requested");
    }
    std::copy_n(output.begin(), dims, sizes);
  });
}

}  // extern "C"
