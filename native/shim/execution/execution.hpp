// Runs a convolution by the choice that was made for it.
#pragma once

#include "shim/state/state.hpp"

namespace mucudnn::shim {

// How one call is to run: by a prepared choice, or by the caller's own call if `choice` is null.
struct Decision {
  std::shared_ptr<SeenKernel> seen;        // null if the convolution is not recognised
  const PreparedChoice* choice = nullptr;  // it lives as long as `seen`
  const char* obstacle = nullptr;          // why `choice` is null
};
Decision choose(State& state, const LegacyCall& call) noexcept;

bool run(State& state, const Decision& decision, const LegacyCall& call, cudnnStatus_t& status) noexcept;

// Makes the caller's own call with `own` and counts it. It runs in slices that fit if that call fails because
// the library finds no memory, or because we answered a smaller workspace than the library would have.
template <typename Own>
cudnnStatus_t pass_on(State& state, const Decision& decision, const LegacyCall& call, Own own) noexcept;

// Counts a call that is passed on. Warns once if such calls take more than the workspace limit.
void count_passed(State& state, const Decision& decision, const LegacyCall& call) noexcept;

// Runs a call in slices after the library refused it for lack of memory, or for lack of workspace because of
// our answers. Returns false for another refusal, or if no slices fit.
bool rescue(State& state, const LegacyCall& call, cudnnStatus_t& status) noexcept;

template <typename Own>
cudnnStatus_t pass_on(State& state, const Decision& decision, const LegacyCall& call, Own own) noexcept {
  cudnnStatus_t status = own();
  if (status == CUDNN_STATUS_SUCCESS || !rescue(state, call, status)) count_passed(state, decision, call);
  return status;
}

// A call of either API, on a kernel that we know.
struct KnownCall {
  SeenKernel& seen;
  cudnnHandle_t handle;
  Arguments arguments;
  Scratch workspace;
  const char* own;  // the caller's own algorithm
};

// The input of run().
struct Work : KnownCall {
  const PreparedChoice& choice;
};

// Returns whether the library reports that it could not allocate memory of the device.
inline bool lacks_memory(cudnnStatus_t status) {
  return status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
}

// Runs a call in ever smaller slices after the library found no memory for it. Leaves `status` as it is if
// nothing was computed.
void rescue_in_slices(State& state, const KnownCall& call, cudnnStatus_t& status) noexcept;

// Runs the choice and sets `status`. Returns false if nothing was computed: then the caller's own call is to
// be made.
bool run(State& state, const Work& work, cudnnStatus_t& status) noexcept;

}  // namespace mucudnn::shim
