// Runs a convolution by the choice that was made for it.
#pragma once

#include "shim/state.hpp"

namespace mucudnn::shim {

// How one call is to run: by a prepared choice, or by the caller's own call if `choice` is null.
struct Decision {
  SeenKernel* seen = nullptr;  // null if the convolution is not recognised
  const PreparedChoice* choice = nullptr;
  const char* obstacle = nullptr;  // why `choice` is null
};
Decision choose(State& state, const LegacyCall& call) noexcept;

bool run(State& state, const Decision& decision, const LegacyCall& call, cudnnStatus_t& status) noexcept;

// Makes the caller's own call with `own` and counts it. If that call fails for lack of workspace because we
// answered a smaller size than the library would have, it runs in slices that fit.
template <typename Own>
cudnnStatus_t pass_on(State& state, const Decision& decision, const LegacyCall& call, Own own) noexcept;

// Counts a call that is passed on. Warns once if such calls take more than the workspace limit.
void count_passed(State& state, const Decision& decision, const LegacyCall& call) noexcept;

// Runs a call in slices after the library refused it. Returns false if our answers did not cause the refusal,
// or if no slices fit.
bool rescue(State& state, const LegacyCall& call, cudnnStatus_t& status) noexcept;

template <typename Own>
cudnnStatus_t pass_on(State& state, const Decision& decision, const LegacyCall& call, Own own) noexcept {
  cudnnStatus_t status = own();
  if (status == CUDNN_STATUS_SUCCESS || !rescue(state, call, status)) count_passed(state, decision, call);
  return status;
}

// The input of run(), from either API.
struct Work {
  SeenKernel& seen;
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
