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

// What to run it by; without a point the caller's own call is to be made.
struct Choice {
  SeenKernel* kernel = nullptr;  // null where the convolution is not recognised
  const Point* point = nullptr;
  const char* obstacle = nullptr;  // why there is no point
  bool may_exchange = true;        // whether other algorithms compute the same
};
Choice choose(State& state, const Execution& execution) noexcept;

bool run(State& state, const Choice& choice, const Execution& execution, cudnnStatus_t& status) noexcept;

// Makes the caller's own call with `own` and counts it. A program whose workspace is too small for that call,
// because we told it of less than the library would have, gets the call in slices that fit.
template <typename Own>
cudnnStatus_t pass_on(State& state, const Choice& choice, const Execution& execution, Own own) noexcept;

// Counts a call that is passed on, with one warning where it takes more than the workspace limit.
void count_passed(State& state, const Choice& choice, const Execution& execution) noexcept;

// Runs a call in slices that the library refused. False where that was not our doing, or cannot be mended.
bool rescue(State& state, const Execution& execution, cudnnStatus_t& status) noexcept;

template <typename Own>
cudnnStatus_t pass_on(State& state, const Choice& choice, const Execution& execution, Own own) noexcept {
  cudnnStatus_t status = own();
  if (status == CUDNN_STATUS_SUCCESS || !rescue(state, execution, status))
    count_passed(state, choice, execution);
  return status;
}

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
