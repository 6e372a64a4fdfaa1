// The types of the graph API's attributes.
#pragma once

#include <cstdint>

#include "abi/cudnn_backend.h"

namespace mucudnn {

// DEFINE(type of a value, the graph API's name for it)
#define MUCUDNN_ATTRIBUTE_TYPES(DEFINE)                          \
  DEFINE(std::int64_t, INT64)                                    \
  DEFINE(std::int32_t, INT32)                                    \
  DEFINE(bool, BOOLEAN)                                          \
  DEFINE(float, FLOAT)                                           \
  DEFINE(double, DOUBLE)                                         \
  DEFINE(char, CHAR)                                             \
  DEFINE(void*, VOID_PTR)                                        \
  DEFINE(cudnnHandle_t, HANDLE)                                  \
  DEFINE(cudnnDataType_t, DATA_TYPE)                             \
  DEFINE(cudnnConvolutionMode_t, CONVOLUTION_MODE)               \
  DEFINE(cudnnPointwiseMode_t, POINTWISE_MODE)                   \
  DEFINE(cudnnNanPropagation_t, NAN_PROPOGATION)                 \
  DEFINE(cudnnBackendTensorReordering_t, TENSOR_REORDERING_MODE) \
  DEFINE(cudnnBackendHeurMode_t, HEUR_MODE)                      \
  DEFINE(cudnnBackendKnobType_t, KNOB_TYPE)                      \
  DEFINE(cudnnBackendNumericalNote_t, NUMERICAL_NOTE)            \
  DEFINE(cudnnBackendBehaviorNote_t, BEHAVIOR_NOTE)

template <typename Value>
constexpr cudnnBackendAttributeType_t attribute_type();

#define MUCUDNN_DEFINE_TYPE(Value, name)                          \
  template <>                                                     \
  constexpr cudnnBackendAttributeType_t attribute_type<Value>() { \
    return CUDNN_TYPE_##name;                                     \
  }
MUCUDNN_ATTRIBUTE_TYPES(MUCUDNN_DEFINE_TYPE)
#undef MUCUDNN_DEFINE_TYPE

}  // namespace mucudnn
