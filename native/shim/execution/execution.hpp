// Runs a convolution by the choice that was made for it.
#pragma once

#include "shim/execution/rescue.hpp"

namespace mucudnn::shim {

// How one legacy call is to run: by a prepared choice, or by the caller's own call if `choice` is null.
struct CallDecision {
  std::shared_ptr<SeenKernel> seen;        // null if no kernel describes exactly this call
  const PreparedChoice* choice = nullptr;  // it lives as long as `seen`
  Obstacle obstacle;                       // why `choice` is null
};
CallDecision decide_call(State& state, const LegacyCall& call) noexcept;

// Counts a call that is passed on. Warns once if such calls take more than the workspace limit.
void count_passed(State& state, const CallDecision& decision, const LegacyCall& call) noexcept;

// Runs the choice. If that fails, the rescue computes what is left.
CallResult run(State& state, const PreparedChoice& choice, KnownCall call) noexcept;
CallResult run(State& state, const CallDecision& decision, const LegacyCall& call) noexcept;

// Rescues a call that the library itself refused with `status`: in smaller slices if it lacked memory, or in
// slices that fit the caller's workspace if we answered too small a size.
CallResult rescue(State& state, const CallDecision& decision, const LegacyCall& call,
                  cudnnStatus_t status) noexcept;

}  // namespace mucudnn::shim
