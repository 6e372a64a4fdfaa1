#include "host/graph/operands.hpp"

namespace mucudnn::host::graph {
namespace {

constexpr std::int64_t kMaxSize = std::numeric_limits<int>::max();

bool has_size(cudnnDataType_t type) { return type <= CUDNN_DATA_INT32 || type == CUDNN_DATA_BFLOAT16; }

template <typename To>
void copy_all(const std::vector<std::int64_t>& from, To& to) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (from[i] > kMaxSize) not_supported("a convolution by ", from[i]);
    to[i] = static_cast<int>(from[i]);
  }
}

}  // namespace

void Tensor::attributes(Access& access) {
  access.value(CUDNN_ATTR_TENSOR_DATA_TYPE, type);
  access.values(CUDNN_ATTR_TENSOR_DIMENSIONS, sizes);
  access.values(CUDNN_ATTR_TENSOR_STRIDES, strides);
  access.value(CUDNN_ATTR_TENSOR_UNIQUE_ID, uid);
  access.value(CUDNN_ATTR_TENSOR_IS_VIRTUAL, is_virtual);
  access.value(CUDNN_ATTR_TENSOR_IS_BY_VALUE, is_by_value);
  access.value(CUDNN_ATTR_TENSOR_VECTOR_COUNT, vector_count);
  access.value(CUDNN_ATTR_TENSOR_VECTORIZED_DIMENSION, vectorized_dimension);
  access.value(CUDNN_ATTR_TENSOR_REORDERING_MODE, reordering);
  access.only_set();
  access.value(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, alignment);
}

void Tensor::complete() {
  if (sizes.empty() || sizes.size() != strides.size()) {
    bad_parameter("a tensor with ", sizes.size(), " dimensions and ", strides.size(), " strides");
  }
  const auto below_zero = [](std::int64_t value) { return value < 0; };
  if (std::any_of(sizes.begin(), sizes.end(), below_zero)) bad_parameter("a size below 0");
  if (std::any_of(strides.begin(), strides.end(), below_zero)) bad_parameter("a stride below 0");
  if (alignment < 1 || (has_size(type) && alignment % static_cast<std::int64_t>(size_of(type)) != 0)) {
    bad_parameter("an alignment of ", alignment, " bytes: a multiple of the data type's size");
  }
  if (is_by_value && sizes.size() > 1) bad_parameter("a tensor by value has one dimension");
  if (vectorized_dimension > static_cast<std::int64_t>(sizes.size())) {
    bad_parameter("there is no dimension ", vectorized_dimension, " to vectorize");
  }
}

cudnnTensorStruct Tensor::shape() const {
  if (sizes.size() > CUDNN_DIM_MAX) not_supported(sizes.size(), " dimensions: at most 8");
  if (is_by_value || vector_count != 1 || reordering != CUDNN_TENSOR_REORDERING_NONE) {
    not_supported("the host engine has no tensors by value, vectorized or reordered");
  }
  const auto too_large = [](std::int64_t size) { return size > kMaxSize; };
  if (std::any_of(sizes.begin(), sizes.end(), too_large)) not_supported("a dimension above 2147483647");
  cudnnTensorStruct tensor;
  tensor.type = type;
  tensor.dims = static_cast<int>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), tensor.sizes.begin());
  std::copy(strides.begin(), strides.end(), tensor.strides.begin());
  return tensor;
}

void Convolution::attributes(Access& access) {
  access.value(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, dims);
  access.value(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, compute_type);
  access.value(CUDNN_ATTR_CONVOLUTION_CONV_MODE, mode);
  access.values(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, paddings);
  access.values(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, post_paddings);
  access.values(CUDNN_ATTR_CONVOLUTION_DILATIONS, dilations);
  access.values(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, strides);
}

void Convolution::complete() {
  if (dims < 1) bad_parameter(dims, " spatial dimensions");
  const auto check = [&](const char* what, std::int64_t least, const std::vector<std::int64_t>& values) {
    const bool in_range =
        std::all_of(values.begin(), values.end(), [&](std::int64_t value) { return value >= least; });
    if (in_range && static_cast<std::int64_t>(values.size()) == dims) return;
    bad_parameter("the ", what, " must be ", dims, ", of at least ", least);
  };
  if (paddings.empty())
    paddings.resize(static_cast<std::size_t>(std::min<std::int64_t>(dims, CUDNN_DIM_MAX)));
  if (post_paddings.empty()) post_paddings.resize(paddings.size());
  check("paddings before", 0, paddings);
  check("paddings after", 0, post_paddings);
  check("strides", 1, strides);
  check("dilations, counted from 1,", 1, dilations);
}

cudnnConvolutionStruct Convolution::shape() const {
  if (dims > cudnnConvolutionStruct::kMaxDims) {
    not_supported(dims, " spatial dimensions: at most 6");
  }
  cudnnConvolutionStruct convolution;
  convolution.dims = static_cast<int>(dims);
  convolution.mode = mode;
  convolution.compute_type = compute_type;
  copy_all(paddings, convolution.paddings);
  copy_all(post_paddings, convolution.post_paddings);
  copy_all(strides, convolution.strides);
  copy_all(dilations, convolution.dilations);
  return convolution;
}

void Pointwise::attributes(Access& access) {
  access.answer_wrong_types(CUDNN_STATUS_BAD_PARAM);
  access.only_set();
  access.value(CUDNN_ATTR_POINTWISE_MODE, mode);
  access.value(CUDNN_ATTR_POINTWISE_MATH_PREC, compute_type);
  access.value(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, nan);
  access.value(CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP, lower);
  access.value(CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP, upper);
  access.value(CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, slope);
  double unused = 0;  // parameters of functions that the host engine does not have
  for (const auto name : {CUDNN_ATTR_POINTWISE_ELU_ALPHA, CUDNN_ATTR_POINTWISE_SOFTPLUS_BETA,
                          CUDNN_ATTR_POINTWISE_SWISH_BETA}) {
    access.value(name, unused);
  }
  std::int64_t axis = 0;
  access.value(CUDNN_ATTR_POINTWISE_AXIS, axis);
}

}  // namespace mucudnn::host::graph
