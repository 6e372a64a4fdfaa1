#include "shim/graph_convolution.hpp"

#include <optional>

#include "cudnn/descriptors.hpp"

namespace mucudnn::shim {
namespace {

constexpr std::int64_t kLeastAlignment = 16;  // bytes; what the slices' plans take x, w and y to have

struct Tensor {
  cudnnDataType_t type{};
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
};

std::optional<Pass> pass_of(const Shadow& operation) {
  for (const Pass pass : {Pass::forward, Pass::backward_data, Pass::backward_filter}) {
    if (operation.type() == attributes_of(pass).operation) return pass;
  }
  return std::nullopt;
}

// Null where the tensor is one that a slice can be taken of; what is set besides is neutral.
const char* read(const Shadow* from, Tensor& to, std::int64_t& uid) {
  if (from == nullptr) return "a tensor that was not seen";
  if (!from->has_only({CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_ATTR_TENSOR_STRIDES,
                       CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT,
                       CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_ATTR_TENSOR_IS_BY_VALUE,
                       CUDNN_ATTR_TENSOR_VECTOR_COUNT, CUDNN_ATTR_TENSOR_VECTORIZED_DIMENSION,
                       CUDNN_ATTR_TENSOR_REORDERING_MODE})) {
    return "a tensor with an unknown attribute";
  }
  if (from->value(CUDNN_ATTR_TENSOR_IS_VIRTUAL, false) || from->value(CUDNN_ATTR_TENSOR_IS_BY_VALUE, false))
    return "a tensor that is not in memory";
  if (from->value<std::int64_t>(CUDNN_ATTR_TENSOR_VECTOR_COUNT, 1) != 1) return "a vectorized tensor";
  if (from->value(CUDNN_ATTR_TENSOR_REORDERING_MODE, CUDNN_TENSOR_REORDERING_NONE) !=
      CUDNN_TENSOR_REORDERING_NONE)
    return "a reordered tensor";
  if (from->value<std::int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 1) % kLeastAlignment != 0)
    return "tensors aligned to less than 16 bytes";
  to = {from->value(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_DATA_FLOAT),
        from->values<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS),
        from->values<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES)};
  uid = from->value<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID, 0);
  return nullptr;
}

// Packed in this layout; the stride of a dimension of size 1 does not count, since nobody steps over it.
bool is_packed(const Tensor& tensor, Layout layout) {
  std::int64_t step = 1;
  bool packed = true;
  const auto next = [&](std::size_t axis) {
    packed = packed && (tensor.sizes[axis] == 1 || tensor.strides[axis] == step);
    step *= tensor.sizes[axis];
  };
  if (layout == Layout::nhwc) next(1);
  for (std::size_t axis = tensor.sizes.size() - 1; axis >= 2; --axis) next(axis);
  if (layout == Layout::nchw) next(1);
  next(0);
  return packed;
}

std::optional<DataType> data_type_of(cudnnDataType_t type) {
  for (const DataType known : {DataType::f32, DataType::f64, DataType::f16, DataType::bf16}) {
    if (cudnn_type(known) == type) return known;
  }
  return std::nullopt;
}

std::optional<Layout> layout_of(const Tensor& x, const Tensor& w, const Tensor& y) {
  for (const Layout layout : {Layout::nchw, Layout::nhwc}) {
    if (is_packed(x, layout) && is_packed(w, layout) && is_packed(y, layout)) return layout;
  }
  return std::nullopt;
}

const char* fill_convolution(const Shadow* from, Problem& problem) {
  if (from == nullptr ||
      !from->has_only({CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_ATTR_CONVOLUTION_CONV_MODE,
                       CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES,
                       CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS,
                       CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS})) {
    return "a convolution with an unknown attribute";
  }
  const auto sizes = [&](cudnnBackendAttributeName_t name) { return from->values<std::int64_t>(name); };
  const auto paddings = sizes(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
  const auto strides = sizes(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
  const auto dilations = sizes(CUDNN_ATTR_CONVOLUTION_DILATIONS);
  const auto dims = static_cast<std::size_t>(problem.dims);
  if (paddings.size() != dims || strides.size() != dims || dilations.size() != dims)
    return "descriptors disagree";
  if (paddings != sizes(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS)) return "padding of two sizes";
  if (from->value(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CONVOLUTION) != CUDNN_CROSS_CORRELATION)
    return "the mode is CUDNN_CONVOLUTION";
  const auto compute_type = problem.data_type == DataType::f64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
  if (from->value(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_HALF) != compute_type)
    return "the compute type";
  for (std::size_t axis = 0; axis < dims; ++axis) {
    const std::size_t to = 3 - dims + axis;
    problem.padding[to] = paddings[axis];
    problem.stride[to] = strides[axis];
    problem.dilation[to] = dilations[axis];
  }
  return nullptr;
}

const char* fill_tensors(const Tensor& x, const Tensor& w, const Tensor& y, Problem& problem) {
  const std::size_t rank = x.sizes.size();
  if (rank != 4 && rank != 5) return "neither 2 nor 3 spatial dimensions";
  for (const Tensor* tensor : {&x, &w, &y}) {
    if (tensor->sizes.size() != rank || tensor->strides.size() != rank) return "descriptors disagree";
  }
  if (x.type != w.type || x.type != y.type) return "mixed data types";
  const auto type = data_type_of(x.type);
  if (!type) return "the data type";
  const auto layout = layout_of(x, w, y);
  if (!layout) return "tensors are not packed";
  if (x.sizes[0] != y.sizes[0] || w.sizes[0] != y.sizes[1] || w.sizes[1] < 1 ||
      x.sizes[1] % w.sizes[1] != 0) {
    return "descriptors disagree";
  }
  problem.data_type = *type;
  problem.layout = *layout;
  problem.dims = static_cast<int>(rank - 2);
  problem.groups = x.sizes[1] / w.sizes[1];
  problem.mini_batch = x.sizes[0];
  problem.in_channels = x.sizes[1];
  problem.out_channels = y.sizes[1];
  for (std::size_t axis = 2; axis < rank; ++axis) {
    const std::size_t to = 3 - rank + axis;
    problem.input[to] = x.sizes[axis];
    problem.kernel[to] = w.sizes[axis];
    problem.output[to] = y.sizes[axis];
  }
  return nullptr;
}

double factor(const Shadow& operation, cudnnBackendAttributeName_t name, double otherwise) {
  return operation.value<double>(name, operation.value(name, static_cast<float>(otherwise)));
}

const char* fill(const Shadow& operation, GraphConvolution& found) {
  const OperationAttributes names = attributes_of(found.pass);
  if (!operation.has_only({names.x, names.w, names.y, names.convolution, names.alpha, names.beta}))
    return "an operation with an unknown attribute";
  Tensor x;
  Tensor w;
  Tensor y;
  const char* obstacle = read(operation.referred_one(names.x).get(), x, found.x);
  if (obstacle == nullptr) obstacle = read(operation.referred_one(names.w).get(), w, found.w);
  if (obstacle == nullptr) obstacle = read(operation.referred_one(names.y).get(), y, found.y);
  if (obstacle == nullptr) obstacle = fill_tensors(x, w, y, found.recognised.problem);
  if (obstacle != nullptr) return obstacle;
  found.alpha = factor(operation, names.alpha, 1);
  found.beta = factor(operation, names.beta, 0);
  return fill_convolution(operation.referred_one(names.convolution).get(), found.recognised.problem);
}

}  // namespace

GraphConvolution recognise_graph(const Shadow& graph) {
  GraphConvolution found;
  const Referred operations = graph.referred(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  const Shadow* convolution = nullptr;
  for (const auto& operation : operations) {
    const auto pass = operation == nullptr ? std::nullopt : pass_of(*operation);
    if (!pass) continue;
    convolution = operation.get();
    found.pass = *pass;
  }
  found.is_convolution = convolution != nullptr;
  if (!found.is_convolution) return found;
  if (operations.size() != 1) {
    found.recognised.obstacle = "fused with other operations";
  } else if (!graph.has_only({CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_ATTR_OPERATIONGRAPH_HANDLE})) {
    found.recognised.obstacle = "a graph with an unknown attribute";
  } else {
    found.recognised.obstacle = fill(*convolution, found);
  }
  return found;
}

}  // namespace mucudnn::shim
