// Runs a convolution by the choice that was made for it.
#pragma once

#include "shim/state.hpp"

namespace mucudnn::shim {

// A convolution call of the legacy API, as the program made it.
struct Execution {
  cudnnHandle_t handle;
  Pass pass;
  CallerDescriptors descriptors;
  unsigned algorithm;
  const void* alpha;
  const void* beta;  // the factor of z in a fused convolution
  Tensors tensors;
  Scratch workspace;
  std::optional<Fusion> fusion{};
  cudnnTensorDescriptor_t z_descriptor = nullptr;
};

// How one call is to run: by a prepared choice, or by the caller's own call if `choice` is null.
struct Decision {
  SeenKernel* kernel = nullptr;  // null if the convolution is not recognised
  const PreparedChoice* choice = nullptr;
  const char* obstacle = nullptr;  // why `choice` is null
};
Decision choose(State& state, const Execution& execution) noexcept;

bool run(State& state, const Decision& decision, const Execution& execution, cudnnStatus_t& status) noexcept;

// Makes the caller's own call with `own` and counts it. If that call fails for lack of workspace because we
// answered a smaller size than the library would have, it runs in slices that fit.
template <typename Own>
cudnnStatus_t pass_on(State& state, const Decision& decision, const Execution& execution, Own own) noexcept;

// Counts a call that is passed on. Warns once if such calls take more than the workspace limit.
void count_passed(State& state, const Decision& decision, const Execution& execution) noexcept;

// Runs a call in slices after the library refused it. Returns false if our answers did not cause the refusal,
// or if no slices fit.
bool rescue(State& state, const Execution& execution, cudnnStatus_t& status) noexcept;

template <typename Own>
cudnnStatus_t pass_on(State& state, const Decision& decision, const Execution& execution, Own own) noexcept {
  cudnnStatus_t status = own();
  if (status == CUDNN_STATUS_SUCCESS || !rescue(state, execution, status))
    count_passed(state, decision, execution);
  return status;
}

// The input of run(), from either API.
struct Work {
  SeenKernel& kernel;
  const PreparedChoice& choice;
  cudnnHandle_t handle;
  Arguments arguments;
  Scratch workspace;
  const char* own;  // the caller's own algorithm
};

// Runs the choice and sets `status`. Returns false if nothing was computed: then the caller's own call is to
// be made.
bool run(State& state, const Work& work, cudnnStatus_t& status) noexcept;

}  // namespace mucudnn::shim
