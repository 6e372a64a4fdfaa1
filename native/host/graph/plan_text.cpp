#include "host/graph/plan_text.hpp"

#include <charconv>
#include <map>

#include "core/json.hpp"

namespace mucudnn::host::graph {
namespace {

constexpr const char* kLibrary = "mucudnn-host";  // engine numbers are valid in their own library only

struct Named {
  const char* name;
  unsigned value;
};

constexpr Named kDataTypes[] = {{"CUDNN_DATA_FLOAT", CUDNN_DATA_FLOAT},
                                {"CUDNN_DATA_DOUBLE", CUDNN_DATA_DOUBLE},
                                {"CUDNN_DATA_HALF", CUDNN_DATA_HALF},
                                {"CUDNN_DATA_BFLOAT16", CUDNN_DATA_BFLOAT16}};
constexpr Named kModes[] = {{"CUDNN_CONVOLUTION", CUDNN_CONVOLUTION},
                            {"CUDNN_CROSS_CORRELATION", CUDNN_CROSS_CORRELATION}};
constexpr Named kFunctions[] = {{"CUDNN_POINTWISE_ADD", CUDNN_POINTWISE_ADD},
                                {"CUDNN_POINTWISE_RELU_FWD", CUDNN_POINTWISE_RELU_FWD}};

// The names of a pass's operation and its tensors in the JSON.
struct Operands {
  Pass pass;
  const char *operation, *x, *w, *y;
};
constexpr Operands kConvolutions[] = {
    {Pass::forward, "CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR", "X", "W", "Y"},
    {Pass::backward_data, "CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR", "dX", "W", "dY"},
    {Pass::backward_filter, "CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR", "X", "dW",
     "dY"}};
constexpr const char* kTileSize = "CUDNN_KNOB_TYPE_TILE_SIZE";
constexpr const char* kPointwise = "CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR";

template <std::size_t count>
const char* name_of(const Named (&table)[count], unsigned value) {
  for (const Named& row : table) {
    if (row.value == value) return row.name;
  }
  not_supported("a plan cannot name the number " + std::to_string(value));
}

template <typename Enum, std::size_t count>
Enum value_of(const Named (&table)[count], const Json& name) {
  for (const Named& row : table) {
    if (row.name == name.text()) return static_cast<Enum>(row.value);
  }
  not_supported("the host engine has no " + name.text());
}

std::string quoted(const std::string& text) { return "\"" + text + "\""; }
std::string member(const char* key, const std::string& value) { return quoted(key) + ":" + value; }
std::string member(const char* key, const char* value) { return member(key, quoted(value)); }
std::string member(const char* key, bool value) { return member(key, std::string(value ? "true" : "false")); }
std::string member(const char* key, std::int64_t value) { return member(key, std::to_string(value)); }
std::string member(const char* key, double value) {
  char text[32];
  return member(key, std::string(text, std::to_chars(text, text + sizeof text, value).ptr));
}
std::string member(const char* key, const Tensor& tensor) {
  return member(key, quoted(std::to_string(tensor.uid)));
}

template <typename Items, typename Write>
std::string joined(const char* begin, const Items& items, const char* end, const Write& write) {
  std::string text = begin;
  for (const auto& item : items) text += (text.size() > 1 ? "," : "") + write(item);
  return text + end;
}

std::string member(const char* key, const std::vector<std::int64_t>& values) {
  return member(key, joined("[", values, "]", [](std::int64_t value) { return std::to_string(value); }));
}

std::string object(std::initializer_list<std::string> members) {
  return joined("{", members, "}", [](const std::string& text) { return text; });
}

std::string written(const Tensor& tensor) {
  return object({member("name", tensor), member("dataType", name_of(kDataTypes, tensor.type)),
                 member("dim", tensor.sizes), member("stride", tensor.strides),
                 member("isVirtual", tensor.is_virtual), member("isByValue", tensor.is_by_value),
                 member("vectCount", tensor.vector_count), member("vectDim", tensor.vectorized_dimension),
                 member("ptrAlignment", tensor.alignment),
                 member("reordering", "CUDNN_TENSOR_REORDERING_NONE")});
}

std::string written(const ConvolutionOperation& operation) {
  const Operands& names = kConvolutions[static_cast<std::size_t>(operation.pass)];
  const Convolution& convolution = *operation.convolution;
  return object({member("operation", names.operation), member("mode", name_of(kModes, convolution.mode)),
                 member("mathPrec", name_of(kDataTypes, convolution.compute_type)),
                 member("alpha", operation.alpha.value), member("beta", operation.beta.value),
                 member("pad", convolution.paddings), member("stride", convolution.strides),
                 member("dilation", convolution.dilations), member(names.x, *operation.x),
                 member(names.w, *operation.w), member(names.y, *operation.y)});
}

std::string written(const PointwiseOperation& operation) {
  const Pointwise& function = *operation.pointwise;
  const std::string alphas = member("alpha1", operation.alpha1.value) + "," +
                             member("alpha2", operation.alpha2.value) + "," + member("X", *operation.x) +
                             "," + member("Y", *operation.y);
  const std::string mode = member("pointwiseMode", name_of(kFunctions, function.mode));
  const std::string precision = member("mathPrec", name_of(kDataTypes, function.compute_type));
  if (function.mode == CUDNN_POINTWISE_ADD) {
    return object({member("operation", kPointwise), mode, precision, alphas, member("B", *operation.b)});
  }
  return object({member("operation", kPointwise), mode, precision, alphas,
                 member("upperClip", function.upper), member("lowerClip", function.lower),
                 member("lowerClipSlope", function.slope),
                 member("nanPropagation", function.nan == CUDNN_PROPAGATE_NAN)});
}

template <typename Visit>
void visit(const Operation& operation, const Visit& body) {
  if (const auto* const convolution = dynamic_cast<const ConvolutionOperation*>(&operation)) {
    body(*convolution);
  } else {
    body(dynamic_cast<const PointwiseOperation&>(operation));
  }
}

std::vector<std::shared_ptr<Tensor>> tensors_of(const ConvolutionOperation& operation) {
  return {operation.x, operation.w, operation.y};
}
std::vector<std::shared_ptr<Tensor>> tensors_of(const PointwiseOperation& operation) {
  return {operation.x, operation.b, operation.y};
}

using Tensors = std::map<std::int64_t, std::shared_ptr<Tensor>>;

Tensors tensors_from(const Json& list) {
  Tensors tensors;
  for (const Json& item : list.items()) {
    const auto tensor = std::make_shared<Tensor>();
    tensor->uid = item.at("name").integer();
    tensor->type = value_of<cudnnDataType_t>(kDataTypes, item.at("dataType"));
    tensor->sizes = item.at("dim").integers();
    tensor->strides = item.at("stride").integers();
    tensor->is_virtual = item.at("isVirtual").truth();
    tensor->alignment = item.at("ptrAlignment").integer();
    tensors[tensor->uid] = complete(tensor);
  }
  return tensors;
}

std::shared_ptr<Tensor> tensor_in(const Tensors& tensors, const Json& name) {
  const auto tensor = tensors.find(name.integer());
  if (tensor == tensors.end()) bad_parameter("the plan has no tensor " + std::to_string(name.integer()));
  return tensor->second;
}

std::shared_ptr<Operation> convolution_from(const Json& node, const Tensors& tensors, const Operands& names) {
  const auto convolution = std::make_shared<Convolution>();
  convolution->mode = value_of<cudnnConvolutionMode_t>(kModes, node.at("mode"));
  convolution->compute_type = value_of<cudnnDataType_t>(kDataTypes, node.at("mathPrec"));
  convolution->paddings = convolution->post_paddings = node.at("pad").integers();
  convolution->strides = node.at("stride").integers();
  convolution->dilations = node.at("dilation").integers();
  convolution->dims = static_cast<std::int64_t>(convolution->paddings.size());
  const auto operation = std::make_shared<ConvolutionOperation>(names.pass);
  operation->convolution = complete(convolution);
  operation->x = tensor_in(tensors, node.at(names.x));
  operation->w = tensor_in(tensors, node.at(names.w));
  operation->y = tensor_in(tensors, node.at(names.y));
  operation->alpha.value = node.at("alpha").number();
  operation->beta.value = node.at("beta").number();
  return complete(operation);
}

std::shared_ptr<Operation> pointwise_from(const Json& node, const Tensors& tensors) {
  const auto function = std::make_shared<Pointwise>();
  function->mode = value_of<cudnnPointwiseMode_t>(kFunctions, node.at("pointwiseMode"));
  function->compute_type = value_of<cudnnDataType_t>(kDataTypes, node.at("mathPrec"));
  const auto operation = std::make_shared<PointwiseOperation>();
  if (function->mode == CUDNN_POINTWISE_ADD) {
    operation->b = tensor_in(tensors, node.at("B"));
  } else {
    function->upper = node.at("upperClip").number();
    function->lower = node.at("lowerClip").number();
    function->slope = node.at("lowerClipSlope").number();
    function->nan = node.at("nanPropagation").truth() ? CUDNN_PROPAGATE_NAN : CUDNN_NOT_PROPAGATE_NAN;
  }
  operation->pointwise = complete(function);
  operation->x = tensor_in(tensors, node.at("X"));
  operation->y = tensor_in(tensors, node.at("Y"));
  operation->alpha1.value = node.at("alpha1").number();
  operation->alpha2.value = node.at("alpha2").number();
  return complete(operation);
}

std::int64_t tile_size_from(const Json& knobs) {
  std::int64_t tile_size = kUnchosen;
  for (const auto& [name, value] : knobs.members()) {
    if (name != kTileSize) bad_parameter("the host engine has no knob " + name);
    value.number();  // throws for a text, which integer() would accept
    tile_size = value.integer();
  }
  return tile_size;
}

std::shared_ptr<Operation> operation_from(const Json& node, const Tensors& tensors) {
  const std::string& name = node.at("operation").text();
  for (const Operands& names : kConvolutions) {
    if (name == names.operation) return convolution_from(node, tensors, names);
  }
  if (name != kPointwise) not_supported("the host engine has no " + name);
  return pointwise_from(node, tensors);
}

}  // namespace

std::string to_json(const EngineConfig& config) {
  std::map<std::int64_t, std::string> tensors;
  std::vector<std::string> nodes;
  for (const auto& operation : config.engine->graph->operations) {
    visit(*operation, [&](const auto& kind) {
      nodes.push_back(written(kind));
      for (const auto& tensor : tensors_of(kind)) {
        if (tensor) tensors[tensor->uid] = written(*tensor);
      }
    });
  }
  const std::string knobs =
      config.engine->has_tile_size() ? object({member(kTileSize, config.tile_size())}) : object({});
  const auto as_is = [](const std::string& text) { return text; };
  const auto second = [](const auto& pair) { return pair.second; };
  return object(
      {member("cudnnVersion", static_cast<std::int64_t>(cudnnGetVersion())),
       member("schemaVersion", std::int64_t{4}),
       member("operationGraph", object({member("tensors", joined("[", tensors, "]", second)),
                                        member("nodes", joined("[", nodes, "]", as_is))})),
       member("engine", object({member("library", kLibrary), member("engineId", config.engine->index),
                                member("knobChoices", knobs)}))});
}

std::shared_ptr<EngineConfig> config_from_json(std::string_view text) {
  const Json plan = Json::parse(text);
  const Json& chosen = plan.at("engine");
  if (plan.at("schemaVersion").integer() != 4 || chosen.at("library").text() != kLibrary) {
    not_supported("the plan is not one of the host engine's");
  }
  const Tensors tensors = tensors_from(plan.at("operationGraph").at("tensors"));
  const auto graph = std::make_shared<OperationGraph>();
  for (const Json& node : plan.at("operationGraph").at("nodes").items()) {
    graph->operations.push_back(operation_from(node, tensors));
  }
  const auto engine = std::make_shared<Engine>();
  engine->graph = complete(graph);
  engine->index = chosen.at("engineId").integer();
  return configured(complete(engine), tile_size_from(chosen.at("knobChoices")));
}

}  // namespace mucudnn::host::graph
