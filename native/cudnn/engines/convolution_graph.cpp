#include "cudnn/engines/convolution_graph.hpp"

#include <algorithm>

#include "core/tensors.hpp"
#include "cudnn/descriptors.hpp"
#include "cudnn/engine.hpp"
#include "cudnn/engines/pointwise.hpp"

namespace mucudnn {
namespace {

constexpr std::size_t kMostConfigs = 128, kMostNotes = 32, kMostKnobs = 64;
constexpr std::int64_t kFirstOperand = 256, kFirstIntermediate = 512;  // unique ids

void set_factor(Backend& operation, cudnnBackendAttributeName_t name, double value, DataType type) {
  if (type == DataType::f64) return operation.set(name, value);
  operation.set(name, static_cast<float>(value));
}

}  // namespace

bool EngineNotes::has(cudnnBackendNumericalNote_t note) const {
  return std::find(numerical.begin(), numerical.end(), note) != numerical.end();
}

bool EngineNotes::has(cudnnBackendBehaviorNote_t note) const {
  return std::find(behavior.begin(), behavior.end(), note) != behavior.end();
}

std::string EngineNotes::text() const {
  std::string text = has(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) ? "" : "deterministic";
  const auto add = [&](bool is_so, const char* word) {
    if (is_so) text.append(text.empty() ? "" : " ").append(word);
  };
  add(has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE), "tensor_op");
  add(has(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS), "down_convert");
  add(has(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION), "reduced_precision");
  add(has(CUDNN_NUMERICAL_NOTE_FFT), "fft");
  add(has(CUDNN_NUMERICAL_NOTE_WINOGRAD), "winograd");
  add(has(CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP), "strict_nan");
  add(has(CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION), "runtime_compilation");
  add(has(CUDNN_BEHAVIOR_NOTE_CUBLASLT_DEPENDENCY), "cublaslt");
  return text;
}

EngineNotes notes_of(const Backend& engine) {
  return {engine.values<cudnnBackendNumericalNote_t>(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, kMostNotes),
          engine.values<cudnnBackendBehaviorNote_t>(CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, kMostNotes)};
}

Backend engine_of(const Backend& config) {
  return std::move(config.descriptors(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1).at(0));
}

EngineName name_of(const Backend& config) {
  constexpr std::int64_t kUnchosen = -1;  // cuDNN's value of a knob that the engine sets itself
  EngineName name;
  name.engine = engine_of(config).value<std::int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  for (const Backend& choice : config.descriptors(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                                                  CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, kMostKnobs)) {
    const auto value = choice.value<std::int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE);
    if (value == kUnchosen) continue;
    name.knobs[choice.value<cudnnBackendKnobType_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE)] = value;
  }
  return name;
}

std::int64_t ConvolutionGraph::operand_uid(std::size_t operation) {
  return kFirstOperand + static_cast<std::int64_t>(operation);
}

ConvolutionGraph::ConvolutionGraph(const Context& context, const Kernel& kernel, const PlanTerms& terms,
                                   const Pitch& pitch)
    : context_(context), graph_(context.library(), CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) {
  const Problem& p = kernel.problem;
  const Backend& y = tensor(kY, y_sizes(p), pitch.in_memory(y_sizes(p), pitch.of_y(p), pitch.y_rows),
                            cudnn_type(p.type_of_y()), p.layout_of_y(), terms.alignment);
  const Backend& convolved = p.is_fused() ? intermediate(p, 0) : y;
  add_convolution(kernel, terms, pitch, convolved);
  add_epilogue(p, terms, pitch, convolved, y);
  if (context.device() == nullptr) graph_.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, context.handle());
  graph_.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operations_);
  graph_.finalize("describing an operation graph");
}

const Backend& ConvolutionGraph::tensor(std::int64_t uid, const std::vector<std::int64_t>& sizes,
                                        const std::vector<std::int64_t>& sizes_in_memory,
                                        cudnnDataType_t type, Layout layout, std::int64_t alignment,
                                        bool is_virtual) {
  Backend& tensor = parts_.emplace_back(context_.library(), CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, type);
  tensor.set(CUDNN_ATTR_TENSOR_DIMENSIONS, sizes);
  tensor.set(CUDNN_ATTR_TENSOR_STRIDES, packed_strides(sizes_in_memory, layout));
  tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, uid);
  tensor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, alignment);
  if (is_virtual) tensor.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, true);
  tensor.finalize("describing a tensor");
  return tensor;
}

// Makes the tensor between an operation of the epilogue and the operation before it.
const Backend& ConvolutionGraph::intermediate(const Problem& p, std::size_t operation) {
  return tensor(kFirstIntermediate + static_cast<std::int64_t>(operation), y_sizes(p), y_sizes(p),
                compute_type_of(p.data_type), p.layout_of_y(), 16, true);
}

const Backend& ConvolutionGraph::convolution(const Problem& p) {
  Backend& convolution = parts_.emplace_back(context_.library(), CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  convolution.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, std::int64_t{p.dims});
  convolution.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, compute_type_of(p.data_type));
  convolution.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CROSS_CORRELATION);
  convolution.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, spatial_sizes(p, p.padding));
  convolution.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, spatial_sizes(p, p.padding));
  convolution.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, spatial_sizes(p, p.stride));
  convolution.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, spatial_sizes(p, p.dilation));
  convolution.finalize("describing a convolution");
  return convolution;
}

const Backend& ConvolutionGraph::function(const Problem& p, PointwiseKind kind) {
  Backend& function = parts_.emplace_back(context_.library(), CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  function.set(CUDNN_ATTR_POINTWISE_MODE, mode_of(kind));
  function.set(CUDNN_ATTR_POINTWISE_MATH_PREC, compute_type_of(p.data_type));
  if (kind == PointwiseKind::relu) {
    function.set(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_PROPAGATE_NAN);
    function.set(CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP, no_upper_clip(p.data_type));
  }
  function.finalize("describing a pointwise function");
  return function;
}

void ConvolutionGraph::add_convolution(const Kernel& kernel, const PlanTerms& terms, const Pitch& pitch,
                                       const Backend& y) {
  const Problem& p = kernel.problem;
  const OperationAttributes& attributes = attributes_of(kernel.pass);
  Backend& operation = operations_.emplace_back(context_.library(), attributes.operation);
  // cuDNN takes the number of groups from the channels of x and of w.
  operation.set(attributes.x, tensor(kX, x_sizes(p), pitch.in_memory(x_sizes(p), pitch.of_x(p), pitch.x_rows),
                                     cudnn_type(p.data_type), p.layout, terms.alignment));
  operation.set(attributes.w, tensor(kW, w_sizes(p), w_sizes(p), cudnn_type(p.data_type), p.layout_of_w(),
                                     terms.alignment));
  operation.set(attributes.y, y);
  operation.set(attributes.convolution, convolution(p));
  set_factor(operation, attributes.alpha, terms.alpha, p.data_type);
  set_factor(operation, attributes.beta, terms.beta, p.data_type);
  operation.finalize("describing an operation");
}

// Adds the operations of the epilogue, linked by intermediate tensors. The last operation writes y.
void ConvolutionGraph::add_epilogue(const Problem& p, const PlanTerms& terms, const Pitch& pitch,
                                    const Backend& convolved, const Backend& y) {
  const Backend* last = &convolved;
  for (std::size_t i = 0; i < p.epilogue.size(); ++i) {
    const auto& [kind, scale, factor] = p.epilogue[i];
    Backend& operation =
        operations_.emplace_back(context_.library(), CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, function(p, kind));
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, *last);
    if (operand_of(kind) != Operand::none) {
      std::vector<std::int64_t> sizes = y_sizes(p);
      if (operand_of(kind) == Operand::channels) {
        for (std::size_t axis = 0; axis < sizes.size(); ++axis) sizes[axis] = axis == 1 ? sizes[axis] : 1;
      }
      const std::int64_t rows = operand_of(kind) == Operand::like_y ? pitch.y_rows : 0;
      operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                    tensor(operand_uid(i), sizes, pitch.in_memory(sizes, sizes[1], rows),
                           cudnn_type(p.data_type), p.layout_of_y(), terms.alignment));
      set_factor(operation, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, factor, p.data_type);
    }
    if (scale != 1) set_factor(operation, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, scale, p.data_type);
    last = i + 1 < p.epilogue.size() ? &intermediate(p, i + 1) : &y;
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, *last);
    operation.finalize("describing a pointwise operation");
  }
}

void ConvolutionGraph::add_heuristics(cudnnBackendHeurMode_t mode, std::vector<EngineName>& names) const {
  Backend heuristics(context_.library(), CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph_);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, mode);
  if (context_.device() != nullptr) heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *context_.device());
  heuristics.finalize("asking the heuristics");
  for (const Backend& config : heuristics.descriptors(CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                      CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, kMostConfigs)) {
    names.push_back(name_of(config));
  }
}

std::int64_t ConvolutionGraph::engine_count() const {
  return graph_.value<std::int64_t>(CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT);
}

Backend ConvolutionGraph::engine(std::int64_t number) const {
  Backend engine(context_.library(), CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  engine.set(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph_);
  engine.set(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, number);
  if (context_.device() != nullptr) engine.set(CUDNN_ATTR_ENGINE_DEVICEPROP, *context_.device());
  engine.finalize("choosing an engine");
  return engine;
}

EngineNotes ConvolutionGraph::notes(std::int64_t number) const { return notes_of(engine(number)); }

EnginePlan ConvolutionGraph::plan(const EngineName& name) const {
  const Library& library = context_.library();
  const Backend chosen = engine(name.engine);
  EnginePlan plan{{library, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR}, 0, notes_of(chosen)};
  std::vector<Backend> choices;
  for (const auto& [type, value] : name.knobs) {
    Backend& choice = choices.emplace_back(library, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    choice.set(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, static_cast<cudnnBackendKnobType_t>(type));
    choice.set(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, value);
    choice.finalize("choosing a knob");
  }
  Backend config(library, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  config.set(CUDNN_ATTR_ENGINECFG_ENGINE, chosen);
  if (!choices.empty()) config.set(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, choices);
  config.finalize("configuring an engine");
  if (context_.device() != nullptr) {
    plan.descriptor.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *context_.device());
  } else {
    plan.descriptor.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, context_.handle());
  }
  plan.descriptor.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
  plan.descriptor.finalize("planning");
  plan.workspace = static_cast<std::size_t>(std::max<std::int64_t>(
      0, plan.descriptor.value<std::int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)));
  return plan;
}

}  // namespace mucudnn
