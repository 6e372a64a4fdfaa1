// Descriptors that operations refer to: tensors, convolutions and pointwise functions.
#pragma once

#include <cstdint>
#include <limits>

#include "host/graph/access.hpp"

namespace mucudnn::host::graph {

class Tensor : public Descriptor {
 public:
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  std::vector<std::int64_t> sizes, strides;
  std::int64_t alignment = 1;
  std::int64_t uid = -1;
  std::int64_t vector_count = 1;
  std::int64_t vectorized_dimension = -1;
  bool is_virtual = false;
  bool is_by_value = false;
  cudnnBackendTensorReordering_t reordering = CUDNN_TENSOR_REORDERING_NONE;

  // Returns the engine's own descriptor. Throws Failure, NOT_SUPPORTED, if the engine has no such tensors.
  cudnnTensorStruct shape() const;

  void attributes(Access& access) override;
  void complete() override;
};

class Convolution : public Descriptor {
 public:
  std::int64_t dims = 0;
  cudnnDataType_t compute_type = CUDNN_DATA_FLOAT;
  cudnnConvolutionMode_t mode = CUDNN_CONVOLUTION;
  std::vector<std::int64_t> paddings, post_paddings, strides, dilations;

  // Returns the engine's own descriptor, with one group. Throws Failure, NOT_SUPPORTED.
  cudnnConvolutionStruct shape() const;

  void attributes(Access& access) override;
  void complete() override;
};

class Pointwise : public Descriptor {
 public:
  cudnnPointwiseMode_t mode = CUDNN_POINTWISE_ADD;
  cudnnDataType_t compute_type = CUDNN_DATA_FLOAT;
  cudnnNanPropagation_t nan = CUDNN_NOT_PROPAGATE_NAN;
  double lower = 0;
  double upper = std::numeric_limits<double>::max();
  double slope = 0;

  void attributes(Access& access) override;
  void complete() override {}
};

}  // namespace mucudnn::host::graph
