#include "host/graph/operation_graph.hpp"

#include <array>
#include <set>

#include "core/scratch.hpp"
#include "core/tensors.hpp"
#include "host/abi/mapping.hpp"

namespace mucudnn::host::graph {
namespace {

// Returns the pointwise operations that follow a forward convolution, in order, and sets `convolution`.
std::vector<const PointwiseOperation*> chain_of(const std::vector<std::shared_ptr<Operation>>& operations,
                                                const ConvolutionOperation*& convolution) {
  std::vector<const PointwiseOperation*> rest, chain;
  for (const auto& operation : operations) {
    if (const auto* pointwise = dynamic_cast<const PointwiseOperation*>(operation.get())) {
      rest.push_back(pointwise);
    } else if (convolution != nullptr) {
      not_supported("the host engine runs graphs of one convolution");
    } else {
      convolution = static_cast<const ConvolutionOperation*>(operation.get());
    }
  }
  if (convolution == nullptr) not_supported("the host engine runs no graphs without a convolution");
  const Tensor* last = convolution->output().get();
  while (!rest.empty()) {
    const auto reads_last = [&](const PointwiseOperation* next) {
      return (next->x && next->x->uid == last->uid) || (next->b && next->b->uid == last->uid);
    };
    const auto next = std::find_if(rest.begin(), rest.end(), reads_last);
    if (next == rest.end() || !last->is_virtual || !(*next)->y) {
      not_supported("the pointwise operations must follow the convolution in a chain of virtual tensors");
    }
    last = (*next)->y.get();
    chain.push_back(*next);
    rest.erase(next);
  }
  if (last->is_virtual) not_supported("the graph's last tensor is virtual");
  return chain;
}

void require_real(const Tensor& tensor) {
  if (tensor.is_virtual) not_supported("a virtual tensor that no operation of the graph writes");
}

// Returns whether the algorithms take a tensor as it is: packed, or some channels of one that is.
bool has_layout(const cudnnTensorStruct& tensor, Layout layout) {
  return sizes_in_memory(tensor.sizes, tensor.strides, tensor.dims, layout).has_value();
}

bool is_narrow(cudnnDataType_t type) { return type == CUDNN_DATA_HALF || type == CUDNN_DATA_BFLOAT16; }

// Makes a copy's filter the one that a cross-correlation takes for the convolution: flipped in space.
void flip(Copy& copy) {
  for (int axis = 2; axis < copy.from.dims; ++axis) {
    std::int64_t& stride = copy.from.strides[axis];
    copy.first += static_cast<std::size_t>((copy.from.sizes[axis] - 1) * stride);
    stride = -stride;
  }
}

// Converts the inputs to the output's layout and data type, and flips the filter. `shapes` are x, w and y,
// and `output` is one of them. Inputs may have 16 bits with an output in float.
void convert_inputs(std::array<cudnnTensorStruct, 3>& shapes, std::size_t output, bool flips,
                    std::vector<Copy>& copies) {
  for (const Layout layout : {Layout::nchw, Layout::nhwc}) {
    const bool is_common = std::all_of(shapes.begin(), shapes.end(), [&](const cudnnTensorStruct& shape) {
      return has_layout(shape, layout) && shape.type == shapes[output].type;
    });
    if (is_common && !flips) return;
  }
  const Layout layout = has_layout(shapes[output], Layout::nchw) ? Layout::nchw : Layout::nhwc;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    cudnnTensorStruct& shape = shapes[i];
    if (!has_layout(shape, Layout::nchw) && !has_layout(shape, Layout::nhwc))
      not_supported("x, w and y must be packed, each NCHW or NHWC, or x and y some channels of others");
    const bool is_widened = is_narrow(shape.type) && shapes[output].type == CUDNN_DATA_FLOAT;
    if (shape.type != shapes[output].type && !is_widened)
      bad_parameter("x, w and y differ in their data types");
    const bool is_flipped = flips && i == 1;
    if (i == output || (has_layout(shape, layout) && !is_widened && !is_flipped)) continue;
    Copy& copy = copies.emplace_back(Copy{i, shape, packed(shape, layout)});
    copy.to.type = shapes[output].type;
    shape = copy.to;
    if (is_flipped) flip(copy);
  }
}

Addition addition_of(const PointwiseOperation& operation, std::int64_t last, const cudnnTensorStruct& output,
                     std::int64_t& operand) {
  const bool swapped = operation.x->uid != last;
  const Tensor& added = swapped ? *operation.x : *operation.b;
  if (added.uid == last) not_supported("a tensor added to itself");
  require_real(added);
  Addition addition;
  addition.scale = (swapped ? operation.alpha2 : operation.alpha1).value;
  addition.operand_scale = (swapped ? operation.alpha1 : operation.alpha2).value;
  addition.operand = added.shape();
  data_type_of(addition.operand.type);  // throws for another type
  check_stretches(addition.operand, output);
  operand = added.uid;
  return addition;
}

Rectifier rectifier_of(const PointwiseOperation& operation) {
  if (operation.alpha1.value != 1) not_supported("the host engine has no scaled RELU");
  const Pointwise& function = *operation.pointwise;
  return {function.lower, function.upper, function.slope, function.nan == CUDNN_PROPAGATE_NAN};
}

// Turns an addition of a tensor like the output into the convolution's residual, if it is the first step. The
// residual may be the output itself, as in the legacy API.
void fold_residual(Fusion& fusion) {
  const auto* const first = fusion.steps.empty() ? nullptr : std::get_if<Addition>(&fusion.steps.front());
  if (first == nullptr || !same_layout(first->operand, fusion.output)) return;
  fusion.alpha *= first->scale;
  fusion.beta = first->operand_scale;
  fusion.residual = fusion.operands.front();
  fusion.operands.erase(fusion.operands.begin());
  fusion.steps.erase(fusion.steps.begin());
}

Fusion fuse(const std::vector<std::shared_ptr<Operation>>& operations) {
  const ConvolutionOperation* convolution = nullptr;
  const auto chain = chain_of(operations, convolution);
  if (convolution->pass != Pass::forward && !chain.empty()) {
    not_supported("the host engine has pointwise operations after forward convolutions only");
  }
  std::shared_ptr<Tensor> x = convolution->x, w = convolution->w, y = convolution->y;
  if (!chain.empty()) y = chain.back()->y;
  for (const auto& tensor : {x, w, y}) require_real(*tensor);

  Fusion fusion;
  fusion.kernel.pass = convolution->pass;
  std::array<cudnnTensorStruct, 3> shapes{x->shape(), w->shape(), y->shape()};
  const std::size_t output = convolution->pass == Pass::forward         ? 2
                             : convolution->pass == Pass::backward_data ? 0
                                                                        : 1;
  cudnnConvolutionStruct shape = convolution->grouped();
  const bool flips = shape.mode == CUDNN_CONVOLUTION;
  if (flips && output == 1) not_supported("the host engine does not flip the gradient of a filter");
  if (flips) shape.mode = CUDNN_CROSS_CORRELATION;
  convert_inputs(shapes, output, flips, fusion.copies);
  fusion.kernel.problem = problem_of(shape, shapes[0], shapes[1], shapes[2]);
  fusion.pitch = pitch_of(fusion.kernel.problem, shapes[0], shapes[2]);
  fusion.uids = {x->uid, w->uid, y->uid};
  fusion.output = y->shape();
  fusion.alpha = convolution->alpha.value;
  fusion.beta = convolution->beta.value;
  fusion.residual = y->uid;
  if (chain.empty()) return fusion;
  if (fusion.beta != 0) not_supported("a convolution with a beta, followed by pointwise operations");

  const Tensor* last = convolution->y.get();
  for (const PointwiseOperation* operation : chain) {
    if (last->sizes != y->sizes) not_supported("a virtual tensor of other sizes than the output");
    // cuDNN 9.19 and 9.28 have no engine for this either.
    if (is_narrow(last->type) && fusion.kernel.problem.layout == Layout::nchw)
      not_supported("16-bit intermediate results in NCHW");
    if (operation->pointwise->mode == CUDNN_POINTWISE_ADD) {
      std::int64_t operand = 0;
      fusion.steps.emplace_back(addition_of(*operation, last->uid, fusion.output, operand));
      fusion.operands.push_back(operand);
    } else if (operation->pointwise->mode == CUDNN_POINTWISE_RELU_FWD) {
      fusion.steps.emplace_back(rectifier_of(*operation));
    } else {
      not_supported("the host engine has the pointwise functions ADD and RELU_FWD only");
    }
    last = operation->y.get();
  }
  fold_residual(fusion);
  return fusion;
}

}  // namespace

std::size_t Copy::size() const {
  std::size_t bytes = size_of(to.type);
  for (int axis = 0; axis < to.dims; ++axis) bytes *= static_cast<std::size_t>(to.sizes[axis]);
  return aligned(bytes);
}

std::size_t Fusion::copies_size() const {
  std::size_t bytes = copies.empty() ? 0 : kAlignment;
  for (const Copy& copy : copies) bytes += copy.size();
  return bytes;
}

const Fusion& OperationGraph::fusion() const {
  if (!fusion_) not_supported(reason_);
  return *fusion_;
}

void OperationGraph::attributes(Access& access) {
  access.value(CUDNN_ATTR_OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED, dynamic_shapes_);
  access.result(CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT,
                std::int64_t{fusion_ ? algorithm_count(fusion_->kernel.pass) : 0});
  access.only_set();
  access.descriptors(CUDNN_ATTR_OPERATIONGRAPH_OPS, operations, CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED,
                     CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
  access.value(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, handle_);
}

// Finalizes any graph, as cuDNN does: fusion() throws later if the host engine cannot run it.
void OperationGraph::complete() {
  if (operations.empty()) bad_parameter("a graph without operations");
  std::set<std::int64_t> written;
  for (const auto& operation : operations) {
    const auto output = operation->output();
    if (output && !written.insert(output->uid).second) {
      bad_parameter("two operations write tensor ", output->uid);
    }
  }
  try {
    if (dynamic_shapes_) not_supported("the host engine has no dynamic shapes");
    fusion_ = fuse(operations);
  } catch (const Failure& failure) {
    reason_ = failure.what();
  } catch (const std::invalid_argument& error) {
    reason_ = error.what();
  }
}

}  // namespace mucudnn::host::graph
