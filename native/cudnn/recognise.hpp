// The problem that a caller's legacy descriptors describe.
#pragma once

#include "core/problem.hpp"
#include "cudnn/library.hpp"

namespace mucudnn {

// The descriptors of one convolution. In a backward pass x, w or y is the gradient.
struct CallerDescriptors {
  cudnnTensorDescriptor_t x;
  cudnnFilterDescriptor_t w;
  cudnnConvolutionDescriptor_t convolution;
  cudnnTensorDescriptor_t y;
};

struct Recognised {
  Problem problem;
  // Null, or the reason why no problem says exactly what the descriptors say.
  const char* obstacle = nullptr;
};

// Returns the problem without checking that its sizes agree. validate() checks that.
Recognised recognise(const Library& library, const CallerDescriptors& descriptors) noexcept;

// Returns whether two tensors have the same type, sizes and strides.
bool same_tensor(const Library& library, cudnnTensorDescriptor_t one, cudnnTensorDescriptor_t other) noexcept;

}  // namespace mucudnn
