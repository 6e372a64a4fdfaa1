// The types of the graph API's attributes.
#pragma once

#include <cstdint>
#include <type_traits>

#include "abi/cudnn_backend.h"

namespace mucudnn {

// Returns the graph API's name for a type of attribute values.
template <typename Value>
constexpr cudnnBackendAttributeType_t attribute_type() {
  if constexpr (std::is_same_v<Value, std::int64_t>) return CUDNN_TYPE_INT64;
  if constexpr (std::is_same_v<Value, std::int32_t>) return CUDNN_TYPE_INT32;
  if constexpr (std::is_same_v<Value, bool>) return CUDNN_TYPE_BOOLEAN;
  if constexpr (std::is_same_v<Value, float>) return CUDNN_TYPE_FLOAT;
  if constexpr (std::is_same_v<Value, double>) return CUDNN_TYPE_DOUBLE;
  if constexpr (std::is_same_v<Value, char>) return CUDNN_TYPE_CHAR;
  if constexpr (std::is_same_v<Value, void*>) return CUDNN_TYPE_VOID_PTR;
  if constexpr (std::is_same_v<Value, cudnnHandle_t>) return CUDNN_TYPE_HANDLE;
  if constexpr (std::is_same_v<Value, cudnnDataType_t>) return CUDNN_TYPE_DATA_TYPE;
  if constexpr (std::is_same_v<Value, cudnnConvolutionMode_t>) return CUDNN_TYPE_CONVOLUTION_MODE;
  if constexpr (std::is_same_v<Value, cudnnPointwiseMode_t>) return CUDNN_TYPE_POINTWISE_MODE;
  if constexpr (std::is_same_v<Value, cudnnNanPropagation_t>) return CUDNN_TYPE_NAN_PROPOGATION;
  if constexpr (std::is_same_v<Value, cudnnBackendTensorReordering_t>)
    return CUDNN_TYPE_TENSOR_REORDERING_MODE;
  if constexpr (std::is_same_v<Value, cudnnBackendHeurMode_t>) return CUDNN_TYPE_HEUR_MODE;
  if constexpr (std::is_same_v<Value, cudnnBackendKnobType_t>) return CUDNN_TYPE_KNOB_TYPE;
  if constexpr (std::is_same_v<Value, cudnnBackendNumericalNote_t>) return CUDNN_TYPE_NUMERICAL_NOTE;
  if constexpr (std::is_same_v<Value, cudnnBackendBehaviorNote_t>) return CUDNN_TYPE_BEHAVIOR_NOTE;
}

}  // namespace mucudnn
