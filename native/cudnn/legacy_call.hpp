// A convolution call of the legacy API, in one form for all passes.
#pragma once

#include <cstddef>
#include <optional>

#include "cudnn/engine.hpp"
#include "cudnn/library.hpp"

namespace mucudnn {

// The descriptors of one convolution. In a backward pass x, w or y is the gradient.
struct LegacyDescriptors {
  cudnnTensorDescriptor_t x;
  cudnnFilterDescriptor_t w;
  cudnnConvolutionDescriptor_t convolution;
  cudnnTensorDescriptor_t y;
};

struct LegacyCall {
  cudnnHandle_t handle;
  Pass pass;
  LegacyDescriptors descriptors;
  unsigned algorithm;  // an enumerator of the pass's type
  const void* alpha;
  const void* beta;  // the factor of z in a fused convolution
  Tensors tensors;
  Scratch workspace;
  std::optional<Fusion> fusion{};
  cudnnTensorDescriptor_t z_descriptor = nullptr;
};

// Calls the library's function of the pass.
cudnnStatus_t execute(const Library& library, const LegacyCall& call);

// Asks the library for the workspace of an algorithm of the pass.
cudnnStatus_t get_workspace_size(const Library& library, cudnnHandle_t handle, Pass pass,
                                 const LegacyDescriptors& descriptors, unsigned algorithm, std::size_t& size);

}  // namespace mucudnn
