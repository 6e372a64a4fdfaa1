#include "shim/execution/execution.hpp"

#include <algorithm>

#include "cudnn/descriptors.hpp"
#include "shim/execution/rescue.hpp"

namespace mucudnn::shim {
namespace {

std::int64_t bytes(std::size_t size) {
  return static_cast<std::int64_t>(std::min<std::size_t>(size, kNoLimit));
}

double value_of(const void* scale, DataType type) {
  return type == DataType::f64 ? *static_cast<const double*>(scale)
                               : static_cast<double>(*static_cast<const float*>(scale));
}

Arguments arguments_of(const Library& library, const LegacyCall& call, DataType type) {
  Arguments arguments{call.tensors, value_of(call.alpha, type), value_of(call.beta, type), call.fusion};
  if (arguments.fusion) {
    arguments.fusion->z_scale = std::exchange(arguments.beta, 0.0);
    arguments.fusion->library = &library;
  }
  return arguments;
}

// Returns false for a call that lacks a pointer. Such a call passes through, and the library reports the
// error.
bool is_complete(const LegacyCall& call) {
  const bool fusion_is_complete =
      !call.fusion || (call.fusion->z != nullptr && call.fusion->bias != nullptr &&
                       call.fusion->bias_descriptor != nullptr && call.fusion->activation != nullptr);
  return call.handle != nullptr && call.alpha != nullptr && call.beta != nullptr &&
         call.tensors.x != nullptr && call.tensors.w != nullptr && call.tensors.y != nullptr &&
         (call.workspace.data != nullptr || call.workspace.size == 0) && fusion_is_complete;
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

// Returns whether groups of channels may run the call. If they fail, the call is made again as a whole, so
// they must not change what it reads: the output, or a tensor that is added to it.
bool may_group(const LegacyCall& call, const Kernel& kernel) {
  return value_of(call.beta, kernel.problem.data_type) == 0;
}

// Fills in `decision`. Returns null if another choice runs the call; else the reason why it passes through.
const char* obstacle_to(State& state, const LegacyCall& call, Decision& decision) {
  if (!is_complete(call)) return "a pointer is NULL";
  const char* obstacle = nullptr;
  decision.seen = state.find_or_add_kernel(recognise(state.library(), call.descriptors, call.pass),
                                           Api::legacy, obstacle);
  if (obstacle != nullptr) return obstacle;
  decision.seen->executions.fetch_add(1, std::memory_order_relaxed);
  if (call.fusion) {
    if (!same_tensor(state.library(), call.z_descriptor, call.descriptors.y)) return "z is not like y";
  }
  if (call.fusion && !may_be_exchanged(state, *call.fusion)) return "fused without an activation";
  const KnownKernel* const known = state.find_or_decide(call.handle, *decision.seen, false);
  if (known == nullptr) return state.reason_for_unknown();
  const std::size_t given = call.workspace.data == nullptr ? 0 : call.workspace.size;
  decision.choice = known->choose(call.algorithm, bytes(given), may_group(call, decision.seen->kernel));
  if (decision.choice == nullptr) {
    // XLA without autotuning hands an address of 0 bytes, and the algorithm that needs none.
    const bool is_empty = call.workspace.data != nullptr && given == 0;
    return is_empty ? "the program brings a workspace of 0 bytes" : "nothing within the workspace";
  }
  return known->is_callers_own(*decision.choice, call.algorithm) ? "the caller's own choice is the best"
                                                                 : nullptr;
}

// Computes the samples from `done` on in ever smaller slices, until the library finds memory for them. Sets
// `done` to the number of samples that are computed.
void run_slices(State& state, const KnownCall& call, std::int64_t& done, cudnnStatus_t& status) {
  const Kernel& kernel = call.seen.kernel;
  const Kernel rest = kernel.with_mini_batch(kernel.problem.mini_batch - done);
  const Arguments at = done > 0 ? advanced(kernel, call.arguments, done) : call.arguments;
  std::int64_t computed = 0;
  state.decider(call.seen).try_divisions(call.handle, rest, call.seen.api, call.own,
                                         bytes(call.workspace.size), [&](const PreparedChoice& choice) {
                                           try {
                                             choice.division->run(call.handle, at, call.workspace, computed);
                                             status = CUDNN_STATUS_SUCCESS;
                                           } catch (const CallFailed& failure) {
                                             status = failure.code();
                                           }
                                           return status == CUDNN_STATUS_SUCCESS || computed > 0 ||
                                                  !lacks_memory(status);
                                         });
  if (status == CUDNN_STATUS_SUCCESS) computed = rest.problem.mini_batch;
  done += computed;
  if (lacks_memory(status) && computed > 0) run_slices(state, call, done, status);
}

// Computes the samples from `done` on, by the caller's own algorithm or by another that fits the workspace.
// The samples before `done` are complete and are not touched again.
cudnnStatus_t run_rest(State& state, const KnownCall& work, std::int64_t done) {
  const Kernel& kernel = work.seen.kernel;
  const Kernel rest = kernel.with_mini_batch(kernel.problem.mini_batch - done);
  const Arguments at = advanced(kernel, work.arguments, done);
  cudnnStatus_t status = CUDNN_STATUS_EXECUTION_FAILED;
  state.decider(work.seen).try_each(work.handle, rest, work.seen.api, work.own, work.workspace.size,
                                    [&](const PreparedKernel& prepared) {
                                      try {
                                        prepared.execute(work.handle, at, work.workspace);
                                        status = CUDNN_STATUS_SUCCESS;
                                      } catch (const CallFailed& failure) {
                                        status = failure.code();
                                      }
                                      return status == CUDNN_STATUS_SUCCESS;
                                    });
  if (lacks_memory(status)) run_slices(state, work, done, status);
  return status;
}

}  // namespace

Decision choose(State& state, const LegacyCall& call) noexcept {
  const RecursionGuard guard;
  Decision decision;
  decision.obstacle = "out of memory";
  try {
    decision.obstacle = obstacle_to(state, call, decision);
  } catch (...) {
    // The caller's own call still works, since it needs no memory of ours.
  }
  if (decision.obstacle != nullptr) decision.choice = nullptr;
  return decision;
}

void count_passed(State& state, const Decision& decision, const LegacyCall& call) noexcept {
  if (decision.obstacle == nullptr) return;
  const RecursionGuard guard;
  state.tally().passed(decision.obstacle);
  // Ask the library for the workspace only if the call may take more than the limit.
  if (bytes(call.workspace.size) > state.limit().value_or(kNoLimit))
    state.warn_above_limit(decision.seen.get(), decision.obstacle, own_workspace(state.library(), call));
}

bool rescue(State& state, const LegacyCall& call, cudnnStatus_t& status) noexcept {
  if (!is_complete(call)) return false;
  const RecursionGuard guard;
  if (lacks_memory(status)) {
    if (!run_in_slices(state.library(), call, true, status)) return false;
    state.tally().lacked_memory();
    state.warn_lacking();
    return true;
  }
  if (state.answers().least_shortfall() == kNoLimit) return false;
  const std::size_t given = call.workspace.data == nullptr ? 0 : call.workspace.size;
  const std::int64_t needed = own_workspace(state.library(), call);
  if (needed <= bytes(given) || !run_in_slices(state.library(), call, false, status)) return false;
  state.tally().rescued();
  state.warn_rescued(needed, bytes(given));
  return true;
}

void rescue_in_slices(State& state, const KnownCall& call, cudnnStatus_t& status) noexcept {
  if (state.find_decider(call.seen) == nullptr) return;
  const RecursionGuard guard;
  std::int64_t done = 0;
  try {
    run_slices(state, call, done, status);
    if (status != CUDNN_STATUS_SUCCESS) return;
    state.tally().lacked_memory();
    state.warn_lacking();
  } catch (const std::exception&) {
    // The library's status stands.
  }
}

bool run(State& state, const Decision& decision, const LegacyCall& call, cudnnStatus_t& status) noexcept {
  SeenKernel& seen = *decision.seen;
  const Kernel& kernel = seen.kernel;
  return run(state,
             {{seen, call.handle, arguments_of(state.library(), call, kernel.problem.data_type),
               call.workspace, legacy_algorithm(kernel.pass, call.algorithm)},
              *decision.choice},
             status);
}

bool run(State& state, const Work& work, cudnnStatus_t& status) noexcept {
  const RecursionGuard guard;
  const PreparedChoice& choice = work.choice;
  std::int64_t done = 0;
  try {
    if (choice.channels != nullptr) {
      Arguments arguments = work.arguments;
      // The copies go to the stream of the library's calls.
      state.library().check(state.library().cudnnGetStream(work.handle, &arguments.stream), "cudnnGetStream");
      choice.channels->run(work.handle, arguments, work.workspace);
    } else {
      choice.division->run(work.handle, work.arguments, work.workspace, done);
    }
    choice.is_divided() ? state.tally().divided(choice.workspace) : state.tally().exchanged(choice.workspace);
    status = CUDNN_STATUS_SUCCESS;
    return true;
  } catch (const std::exception& error) {
    state.tally().passed("a call of the library failed");
    try {
      state.warn_once(work.seen, std::to_string(done) + " samples by " + describe(choice) +
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
