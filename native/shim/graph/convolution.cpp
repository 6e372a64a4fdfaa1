#include "shim/graph/convolution.hpp"

#include <optional>

#include "core/tensors.hpp"
#include "cudnn/descriptors.hpp"
#include "cudnn/engines/pointwise.hpp"

namespace mucudnn::shim {
namespace {

std::optional<Pass> pass_of(const Shadow& operation) {
  for (const Pass pass : kPasses) {
    if (operation.type() == attributes_of(pass).operation) return pass;
  }
  return std::nullopt;
}

// Returns the layout of a tensor, `preferred` if it fits both; nothing if the tensor is not packed.
std::optional<Layout> layout_of(const Tensor& tensor, Layout preferred) {
  for (const Layout layout : {preferred, Layout::nchw, Layout::nhwc}) {
    if (is_packed(tensor, layout)) return layout;
  }
  return std::nullopt;
}

// Fills in the layouts, the same for all tensors if possible. Returns false if a tensor is not packed.
bool fill_layouts(const Tensor& x, const Tensor& w, const Tensor& y, Problem& problem) {
  for (const Layout layout : {Layout::nchw, Layout::nhwc}) {
    if (!is_packed(x, layout) || !is_packed(w, layout) || !is_packed(y, layout)) continue;
    problem.set_layouts(layout, layout, layout);
    return true;
  }
  const auto of_x = layout_of(x, Layout::nchw);
  if (!of_x) return false;
  const auto of_w = layout_of(w, *of_x), of_y = layout_of(y, *of_x);
  if (!of_w || !of_y) return false;
  problem.set_layouts(*of_x, *of_w, *of_y);
  return true;
}

// Fills in the data types. `may_widen` says whether y may be f32 with 16-bit x and w.
Obstacle fill_types(const Tensor& x, const Tensor& w, const Tensor& y, bool may_widen, Problem& problem) {
  if (x.type != w.type) return "mixed data types";
  const auto type = data_type_of(x.type), y_type = data_type_of(y.type);
  if (!type || !y_type) return "the data type";
  const bool is_wider = may_widen && *y_type == DataType::f32 && size_of(*type) == 2;
  if (*y_type != *type && !is_wider) return "mixed data types";
  problem.set_types(*type, *y_type);
  return {};
}

Obstacle fill_convolution(const Shadow* from, Problem& problem) {
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
  if (from->value(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_HALF) != compute_type_of(problem.data_type))
    return "the compute type";
  set_window(problem, strides, paddings, dilations);
  return {};
}

Obstacle fill_tensors(const Tensor& x, const Tensor& w, const Tensor& y, bool may_widen, Problem& problem) {
  const std::size_t rank = x.sizes.size();
  if (rank != 4 && rank != 5) return "neither 2 nor 3 spatial dimensions";
  for (const Tensor* tensor : {&x, &w, &y}) {
    if (tensor->sizes.size() != rank || tensor->strides.size() != rank) return "descriptors disagree";
  }
  if (const Obstacle obstacle = fill_types(x, w, y, may_widen, problem)) return obstacle;
  if (!fill_layouts(x, w, y, problem)) return "tensors are not packed";
  if (x.sizes[0] != y.sizes[0] || w.sizes[0] != y.sizes[1] || w.sizes[1] < 1 ||
      x.sizes[1] % w.sizes[1] != 0) {
    return "descriptors disagree";
  }
  problem.dims = static_cast<int>(rank - 2);
  problem.groups = x.sizes[1] / w.sizes[1];
  set_tensor_sizes(problem, x.sizes, w.sizes, y.sizes);
  return {};
}

Obstacle fill(const Shadow& operation, const Referred& pointwise, GraphConvolution& convolution) {
  const OperationAttributes& names = attributes_of(convolution.recognised.kernel.pass);
  if (!operation.has_only({names.x, names.w, names.y, names.convolution, names.alpha, names.beta}))
    return "an operation with an unknown attribute";
  const auto convolved = operation.referred_one(names.y);
  Referred chain;
  if (const Obstacle obstacle = put_in_order(uid_of(convolved.get()), pointwise, chain)) return obstacle;
  const auto last =
      chain.empty() ? convolved : chain.back()->referred_one(CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
  Tensor x;
  Tensor w;
  Tensor y;
  Problem& problem = convolution.recognised.kernel.problem;
  // cuDNN has no engine that adds slices of a wider gradient, and 9.19 has none for wider gradients at all.
  const bool may_widen = convolution.recognised.kernel.pass == Pass::forward && chain.empty();
  Obstacle obstacle = read(operation.referred_one(names.x).get(), x);
  if (!obstacle) obstacle = read(operation.referred_one(names.w).get(), w);
  if (!obstacle) obstacle = read(last.get(), y);
  if (!obstacle) obstacle = fill_tensors(x, w, y, may_widen, problem);
  if (obstacle) return obstacle;
  convolution.x = x.uid;
  convolution.w = w.uid;
  convolution.y = y.uid;
  convolution.alpha = factor(operation, names.alpha, 1);
  convolution.beta = factor(operation, names.beta, 0);
  if (!chain.empty() && (convolution.alpha != 1 || convolution.beta != 0))
    return "a fused convolution with alpha or beta";
  obstacle = fill_convolution(operation.referred_one(names.convolution).get(), problem);
  return obstacle ? obstacle : fill_epilogue(convolved.get(), chain, y, problem, convolution.operands);
}

}  // namespace

GraphConvolution recognise_graph(const Shadow& graph) {
  GraphConvolution convolution;
  Referred convolutions;
  Referred pointwise;
  const Referred operations = graph.referred(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  for (const auto& operation : operations) {
    if (operation == nullptr) continue;
    if (pass_of(*operation)) convolutions.push_back(operation);
    if (operation->type() == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) pointwise.push_back(operation);
  }
  convolution.is_convolution = !convolutions.empty();
  if (!convolution.is_convolution) return convolution;
  const Pass pass = convolution.recognised.kernel.pass = *pass_of(*convolutions.front());
  Obstacle& obstacle = convolution.recognised.obstacle;
  if (convolutions.size() > 1) {
    obstacle = "several convolutions in one graph";
  } else if (operations.size() != 1 + pointwise.size()) {
    obstacle = "fused with other operations";
  } else if (!pointwise.empty() && pass != Pass::forward) {
    obstacle = "a gradient fused with pointwise operations";
  } else if (!graph.has_only({CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_ATTR_OPERATIONGRAPH_HANDLE})) {
    obstacle = "a graph with an unknown attribute";
  } else {
    obstacle = fill(*convolutions.front(), pointwise, convolution);
  }
  return convolution;
}

}  // namespace mucudnn::shim
