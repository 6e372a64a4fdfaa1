#include "shim/execution.hpp"

#include <algorithm>

#include "cudnn/descriptors.hpp"
#include "shim/rescue.hpp"

namespace mucudnn::shim {
namespace {

std::int64_t bytes(std::size_t size) {
  return static_cast<std::int64_t>(std::min<std::size_t>(size, kNoLimit));
}

double value_of(const void* scale, DataType type) {
  return type == DataType::f64 ? *static_cast<const double*>(scale)
                               : static_cast<double>(*static_cast<const float*>(scale));
}

Arguments arguments_of(const Execution& execution, DataType type) {
  Arguments arguments{execution.tensors, value_of(execution.alpha, type), value_of(execution.beta, type),
                      execution.fusion};
  if (arguments.fusion) arguments.fusion->z_scale = std::exchange(arguments.beta, 0.0);
  return arguments;
}

// Returns false for a call that lacks a pointer. Such a call passes through, and the library reports the
// error.
bool is_complete(const Execution& e) {
  const bool fusion_is_complete =
      !e.fusion || (e.fusion->z != nullptr && e.fusion->bias != nullptr &&
                    e.fusion->bias_descriptor != nullptr && e.fusion->activation != nullptr);
  return e.handle != nullptr && e.alpha != nullptr && e.beta != nullptr && e.tensors.x != nullptr &&
         e.tensors.w != nullptr && e.tensors.y != nullptr && fusion_is_complete;
}

// Returns whether another algorithm may compute the fused call. cuDNN accepts "no activation" with one
// algorithm only, so such a call must keep its algorithm.
bool may_be_exchanged(const State& state, const Fusion& fusion) {
  cudnnActivationMode_t mode{};
  cudnnNanPropagation_t nan{};
  double coefficient = 0;
  return state.library().cudnnGetActivationDescriptor(fusion.activation, &mode, &nan, &coefficient) ==
             CUDNN_STATUS_SUCCESS &&
         mode != CUDNN_ACTIVATION_IDENTITY;
}

// Fills in `decision`. Returns null if another choice runs the call; else the reason why it passes through.
const char* obstacle_to(State& state, const Execution& execution, Decision& decision) {
  if (!is_complete(execution)) return "a pointer is NULL";
  const char* obstacle = nullptr;
  decision.kernel = state.find_or_add_kernel(recognise(state.library(), execution.descriptors),
                                             execution.pass, Api::legacy, obstacle);
  if (obstacle != nullptr) return obstacle;
  decision.kernel->executions.fetch_add(1, std::memory_order_relaxed);
  if (execution.fusion) {
    if (!same_tensor(state.library(), execution.z_descriptor, execution.descriptors.y))
      return "z is not like y";
  }
  if (execution.fusion && !may_be_exchanged(state, *execution.fusion)) return "fused without an activation";
  const KnownKernel* const known = state.find_or_decide(execution.handle, *decision.kernel, false);
  if (known == nullptr) return state.reason_for_unknown();
  const std::size_t given = execution.workspace.data == nullptr ? 0 : execution.workspace.size;
  decision.choice = known->choose(execution.algorithm, bytes(given));
  if (decision.choice == nullptr) return "nothing within the workspace";
  return known->is_callers_own(*decision.choice, execution.algorithm) ? "the caller's own choice is the best"
                                                                      : nullptr;
}

// Computes the samples from `done` on, by the caller's own algorithm or by another that fits the workspace.
// The samples before `done` are complete and are not touched again.
cudnnStatus_t run_rest(State& state, const Work& work, std::int64_t done) {
  const SeenKernel& kernel = work.kernel;
  const Problem rest = kernel.problem.with_mini_batch(kernel.problem.mini_batch - done);
  const Arguments at = advanced(kernel.problem, kernel.pass, work.arguments, done);
  cudnnStatus_t status = CUDNN_STATUS_EXECUTION_FAILED;
  state.decider(kernel).try_each(work.handle, rest, kernel.pass, kernel.api, work.own, work.workspace.size,
                                 [&](const PreparedKernel& prepared) {
                                   try {
                                     prepared.execute(work.handle, at, work.workspace);
                                     status = CUDNN_STATUS_SUCCESS;
                                   } catch (const CallFailed& failure) {
                                     status = failure.code();
                                   }
                                   return status == CUDNN_STATUS_SUCCESS;
                                 });
  return status;
}

}  // namespace

Decision choose(State& state, const Execution& execution) noexcept {
  const RecursionGuard guard;
  Decision decision;
  decision.obstacle = "out of memory";
  try {
    decision.obstacle = obstacle_to(state, execution, decision);
  } catch (...) {
    // The caller's own call still works, since it needs no memory of ours.
  }
  if (decision.obstacle != nullptr) decision.choice = nullptr;
  return decision;
}

void count_passed(State& state, const Decision& decision, const Execution& execution) noexcept {
  if (decision.obstacle == nullptr) return;
  const RecursionGuard guard;
  state.tally().passed(decision.obstacle);
  // Ask the library for the workspace only if the call may take more than the limit.
  if (bytes(execution.workspace.size) > state.limit().value_or(kNoLimit))
    state.warn_above_limit(decision.kernel, decision.obstacle, own_workspace(state.library(), execution));
}

bool rescue(State& state, const Execution& execution, cudnnStatus_t& status) noexcept {
  if (state.answers().least_shortfall() == kNoLimit || !is_complete(execution)) return false;
  const RecursionGuard guard;
  const std::size_t given = execution.workspace.data == nullptr ? 0 : execution.workspace.size;
  const std::int64_t needed = own_workspace(state.library(), execution);
  if (needed <= bytes(given) || !run_in_slices(state.library(), execution, status)) return false;
  state.tally().rescued();
  state.warn_rescued(needed, bytes(given));
  return true;
}

bool run(State& state, const Decision& decision, const Execution& execution, cudnnStatus_t& status) noexcept {
  SeenKernel& kernel = *decision.kernel;
  return run(state,
             {kernel, *decision.choice, execution.handle, arguments_of(execution, kernel.problem.data_type),
              execution.workspace, legacy_algorithm(kernel.pass, execution.algorithm)},
             status);
}

bool run(State& state, const Work& work, cudnnStatus_t& status) noexcept {
  const RecursionGuard guard;
  const PreparedChoice& choice = work.choice;
  std::int64_t done = 0;
  try {
    choice.division->run(work.handle, work.arguments, work.workspace, done);
    choice.configuration.size() > 1 ? state.tally().divided() : state.tally().exchanged();
    status = CUDNN_STATUS_SUCCESS;
    return true;
  } catch (const std::exception& error) {
    state.tally().passed("a call of the library failed");
    try {
      state.warn_once(work.kernel, std::to_string(done) + " samples by " + describe(choice.configuration) +
                                       ", the others undivided: " + error.what());
    } catch (const std::bad_alloc&) {
      // Out of memory: go on without the warning.
    }
  }
  try {
    status = run_rest(state, work, done);
  } catch (const CallFailed& failure) {
    status = failure.code();
  } catch (...) {
    status = CUDNN_STATUS_ALLOC_FAILED;
  }
  // The caller's own call can still give its own status as long as nothing is computed.
  return status == CUDNN_STATUS_SUCCESS || done > 0;
}

}  // namespace mucudnn::shim
