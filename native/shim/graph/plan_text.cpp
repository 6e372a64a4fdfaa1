#include "shim/graph/plan_text.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <stdexcept>
#include <unordered_map>

#include "abi/convolution_operations.hpp"
#include "core/json.hpp"

namespace mucudnn::shim {
namespace {

using Name = cudnnBackendAttributeName_t;
using Tensors = std::unordered_map<std::int64_t, std::shared_ptr<const Shadow>>;

template <typename Value>
void put(Shadow& shadow, Name name, const std::vector<Value>& values) {
  std::vector<char> bytes(values.size() * sizeof(Value));
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  shadow.set({name, attribute_type<Value>(), std::move(bytes), {}});
}

template <typename Value>
void put(Shadow& shadow, Name name, Value value) {
  const auto* const bytes = reinterpret_cast<const char*>(&value);
  shadow.set({name, attribute_type<Value>(), {bytes, bytes + sizeof value}, {}});
}

void refer(Shadow& shadow, Name name, std::shared_ptr<const Shadow> other) {
  shadow.set({name, CUDNN_TYPE_BACKEND_DESCRIPTOR, {}, {std::move(other)}});
}

// Throws if the object has a member that is not among `names`: it may change what the plan computes.
void require_only(const Json& object, std::initializer_list<std::string_view> names) {
  for (const auto& [name, value] : object.members()) {
    if (std::find(names.begin(), names.end(), name) == names.end())
      throw std::invalid_argument("the plan has an unknown \"" + name + "\"");
  }
}

template <typename Enum>
Enum value_of(const Json& text, std::initializer_list<std::pair<std::string_view, Enum>> table) {
  for (const auto& [name, value] : table) {
    if (name == text.text()) return value;
  }
  throw std::invalid_argument("the plan has an unknown " + text.text());
}

cudnnDataType_t data_type_of(const Json& text) {
  return value_of<cudnnDataType_t>(text, {{"CUDNN_DATA_FLOAT", CUDNN_DATA_FLOAT},
                                          {"CUDNN_DATA_DOUBLE", CUDNN_DATA_DOUBLE},
                                          {"CUDNN_DATA_HALF", CUDNN_DATA_HALF},
                                          {"CUDNN_DATA_BFLOAT16", CUDNN_DATA_BFLOAT16}});
}

std::shared_ptr<const Shadow> tensor_of(const Json& json) {
  require_only(json, {"name", "dataType", "dim", "stride", "isVirtual", "isByValue", "vectCount", "vectDim",
                      "ptrAlignment", "reordering"});
  auto tensor = std::make_shared<Shadow>(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  put(*tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, json.at("name").integer());
  put(*tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, data_type_of(json.at("dataType")));
  put(*tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, json.at("dim").integers());
  put(*tensor, CUDNN_ATTR_TENSOR_STRIDES, json.at("stride").integers());
  put(*tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, json.at("isVirtual").truth());
  put(*tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, json.at("isByValue").truth());
  put(*tensor, CUDNN_ATTR_TENSOR_VECTOR_COUNT, json.at("vectCount").integer());
  put(*tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, json.at("ptrAlignment").integer());
  if (json.at("reordering").text() != "CUDNN_TENSOR_REORDERING_NONE") tensor->set_unknown();
  return tensor;
}

std::shared_ptr<const Shadow> find(const Tensors& tensors, const Json& name) {
  const auto tensor = tensors.find(name.integer());
  if (tensor == tensors.end()) throw std::invalid_argument("the plan lacks a tensor");
  return tensor->second;
}

std::shared_ptr<const Shadow> convolution_of(const Json& node, const Tensors& tensors,
                                             const OperationAttributes& names,
                                             std::array<const char*, 3> operands) {
  const auto [x, w, y] = operands;
  require_only(node,
               {"operation", "mode", "mathPrec", "alpha", "beta", "pad", "stride", "dilation", x, w, y});
  if (node.at("mode").text() != "CUDNN_CROSS_CORRELATION") throw std::invalid_argument("the plan's mode");
  auto convolution = std::make_shared<Shadow>(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  put(*convolution, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CROSS_CORRELATION);
  put(*convolution, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, data_type_of(node.at("mathPrec")));
  for (const Name name : {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS})
    put(*convolution, name, node.at("pad").integers());
  put(*convolution, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, node.at("stride").integers());
  put(*convolution, CUDNN_ATTR_CONVOLUTION_DILATIONS, node.at("dilation").integers());
  auto operation = std::make_shared<Shadow>(names.operation);
  refer(*operation, names.convolution, std::move(convolution));
  refer(*operation, names.x, find(tensors, node.at(x)));
  refer(*operation, names.w, find(tensors, node.at(w)));
  refer(*operation, names.y, find(tensors, node.at(y)));
  put(*operation, names.alpha, node.at("alpha").number());
  put(*operation, names.beta, node.at("beta").number());
  return operation;
}

// cuDNN's text of a RELU does not say whether NaN propagates, so the shadow then lacks this attribute. A RELU
// without it is not recognised.
std::shared_ptr<const Shadow> pointwise_of(const Json& node, const Tensors& tensors) {
  require_only(node, {"operation", "pointwiseMode", "mathPrec", "alpha1", "alpha2", "X", "Y", "B",
                      "upperClip", "lowerClip", "lowerClipSlope", "nanPropagation"});
  auto function = std::make_shared<Shadow>(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  put(*function, CUDNN_ATTR_POINTWISE_MODE,
      value_of<cudnnPointwiseMode_t>(node.at("pointwiseMode"),
                                     {{"CUDNN_POINTWISE_ADD", CUDNN_POINTWISE_ADD},
                                      {"CUDNN_POINTWISE_RELU_FWD", CUDNN_POINTWISE_RELU_FWD}}));
  put(*function, CUDNN_ATTR_POINTWISE_MATH_PREC, data_type_of(node.at("mathPrec")));
  const auto put_number = [&](const char* key, Name name) {
    if (const Json* const number = node.find(key)) put(*function, name, number->number());
  };
  put_number("upperClip", CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP);
  put_number("lowerClip", CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP);
  put_number("lowerClipSlope", CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE);
  if (const Json* const propagates = node.find("nanPropagation")) {
    put(*function, CUDNN_ATTR_POINTWISE_NAN_PROPAGATION,
        propagates->truth() ? CUDNN_PROPAGATE_NAN : CUDNN_NOT_PROPAGATE_NAN);
  }
  auto operation = std::make_shared<Shadow>(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  refer(*operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, std::move(function));
  refer(*operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, find(tensors, node.at("X")));
  refer(*operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, find(tensors, node.at("Y")));
  if (const Json* const b = node.find("B"))
    refer(*operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, find(tensors, *b));
  put(*operation, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, node.at("alpha1").number());
  put(*operation, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, node.at("alpha2").number());
  return operation;
}

std::shared_ptr<const Shadow> operation_of(const Json& node, const Tensors& tensors) {
  constexpr const char* kNames[] = {"FORWARD", "BACKWARD_DATA", "BACKWARD_FILTER"};
  constexpr std::array<const char*, 3> kOperands[] = {{"X", "W", "Y"}, {"dX", "W", "dY"}, {"X", "dW", "dY"}};
  const std::string& kind = node.at("operation").text();
  if (kind == "CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR") return pointwise_of(node, tensors);
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    if (kind == std::string("CUDNN_BACKEND_OPERATION_CONVOLUTION_") + kNames[i] + "_DESCRIPTOR")
      return convolution_of(node, tensors, kConvolutionOperations[i], kOperands[i]);
  }
  throw std::invalid_argument("the plan has an unknown " + kind);
}

}  // namespace

std::shared_ptr<const Shadow> graph_of_text(std::string_view text) {
  const Json plan = Json::parse(text);
  const Json& json = plan.at("operationGraph");
  require_only(json, {"finalizeMode", "tensors", "nodes"});
  Tensors tensors;
  for (const Json& item : json.at("tensors").items()) tensors[item.at("name").integer()] = tensor_of(item);
  Attribute operations{CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, {}, {}};
  for (const Json& node : json.at("nodes").items())
    operations.referred.push_back(operation_of(node, tensors));
  auto graph = std::make_shared<Shadow>(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph->set(std::move(operations));
  return graph;
}

}  // namespace mucudnn::shim
