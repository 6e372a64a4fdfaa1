// The running of a convolution by the configuration that was chosen for it.
#pragma once

#include "shim/state.hpp"

namespace mucudnn::shim {

// A convolution that a program asks for by the legacy API.
struct Execution {
  cudnnHandle_t handle;
  Pass pass;
  CallerDescriptors descriptors;
  unsigned algorithm;
  const void* alpha;
  const void* beta;  // of a fused convolution the factor of z
  Tensors tensors;
  Scratch workspace;
  std::optional<Fusion> fusion{};
  cudnnTensorDescriptor_t z_descriptor = nullptr;
};

// By what to run it; null, with the reason counted, where the caller's own call is to be made.
struct Choice {
  SeenKernel* kernel = nullptr;
  const Point* point = nullptr;
};
Choice choose(State& state, const Execution& execution) noexcept;

bool run(State& state, const Choice& choice, const Execution& execution, cudnnStatus_t& status) noexcept;

// What run() runs, whichever API it was asked for by.
struct Work {
  SeenKernel& kernel;
  const Point& point;
  cudnnHandle_t handle;
  Arguments arguments;
  Scratch workspace;
  const char* own;  // the caller's own algorithm
};

// False where nothing is done and the caller's own call is to be made after all; else its status.
bool run(State& state, const Work& work, cudnnStatus_t& status) noexcept;

}  // namespace mucudnn::shim
