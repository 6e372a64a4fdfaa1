// From a caller's descriptors to the problem that they describe.
#pragma once

#include "core/problem.hpp"
#include "cudnn/library.hpp"

namespace mucudnn {

// Those of one convolution, whatever the pass names them.
struct CallerDescriptors {
  cudnnTensorDescriptor_t x;
  cudnnFilterDescriptor_t w;
  cudnnConvolutionDescriptor_t convolution;
  cudnnTensorDescriptor_t y;
};

struct Recognised {
  Problem problem;
  const char* obstacle = nullptr;  // why no problem says exactly what the descriptors do
};

// Sizes are taken as they are: they may disagree with one another, which validate() finds.
Recognised recognise(const Library& library, const CallerDescriptors& descriptors) noexcept;

// Whether two tensors have the same type, sizes and strides.
bool same_tensor(const Library& library, cudnnTensorDescriptor_t one, cudnnTensorDescriptor_t other) noexcept;

}  // namespace mucudnn
