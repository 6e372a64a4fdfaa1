#include "shim/execution.hpp"

#include <algorithm>

#include "cudnn/descriptors.hpp"

namespace mucudnn::shim {
namespace {

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

// What is wrong with the call is for the library to say.
bool is_complete(const Execution& e) {
  const bool fusion_is_complete =
      !e.fusion || (e.fusion->z != nullptr && e.fusion->bias != nullptr &&
                    e.fusion->bias_descriptor != nullptr && e.fusion->activation != nullptr);
  return e.handle != nullptr && e.alpha != nullptr && e.beta != nullptr && e.tensors.x != nullptr &&
         e.tensors.w != nullptr && e.tensors.y != nullptr && fusion_is_complete;
}

// cuDNN fuses no activation with one algorithm only, so that no other may take its place.
bool may_be_exchanged(const State& state, const Fusion& fusion) {
  cudnnActivationMode_t mode{};
  cudnnNanPropagation_t nan{};
  double coefficient = 0;
  return state.library().cudnnGetActivationDescriptor(fusion.activation, &mode, &nan, &coefficient) ==
             CUDNN_STATUS_SUCCESS &&
         mode != CUDNN_ACTIVATION_IDENTITY;
}

// Null where the call is one to divide; else the reason why it passes through.
const char* obstacle_to(State& state, const Execution& execution, Choice& choice) {
  if (!is_complete(execution)) return "a pointer is NULL";
  const char* obstacle = nullptr;
  choice.kernel =
      state.see(recognise(state.library(), execution.descriptors), execution.pass, Api::legacy, obstacle);
  if (obstacle != nullptr) return obstacle;
  choice.kernel->executions.fetch_add(1, std::memory_order_relaxed);
  if (execution.fusion) {
    if (!same_tensor(state.library(), execution.z_descriptor, execution.descriptors.y))
      return "z is not like y";
  }
  choice.is_divisible = true;
  if (execution.fusion && !may_be_exchanged(state, *execution.fusion)) return "fused without an activation";
  const KnownKernel* const known = state.know(execution.handle, *choice.kernel, false);
  if (known == nullptr) return state.reason_for_unknown();
  const std::size_t given = execution.workspace.data == nullptr ? 0 : execution.workspace.size;
  choice.point =
      known->choose(execution.algorithm, static_cast<std::int64_t>(std::min<std::size_t>(given, kNoLimit)));
  if (choice.point == nullptr) return "nothing within the workspace";
  return known->is_own(*choice.point, execution.algorithm) ? "the caller's own choice is the best" : nullptr;
}

// The bytes that the caller's own call needs; 0 where the library does not take it.
std::int64_t own_workspace(const Library& library, const Execution& e) noexcept {
  const CallerDescriptors& d = e.descriptors;
  std::size_t size = 0;
  cudnnStatus_t status{};
  switch (e.pass) {
    case Pass::forward:
      status = library.cudnnGetConvolutionForwardWorkspaceSize(
          e.handle, d.x, d.w, d.convolution, d.y, static_cast<cudnnConvolutionFwdAlgo_t>(e.algorithm), &size);
      break;
    case Pass::backward_data:
      status = library.cudnnGetConvolutionBackwardDataWorkspaceSize(
          e.handle, d.w, d.y, d.convolution, d.x, static_cast<cudnnConvolutionBwdDataAlgo_t>(e.algorithm),
          &size);
      break;
    case Pass::backward_filter:
      status = library.cudnnGetConvolutionBackwardFilterWorkspaceSize(
          e.handle, d.x, d.y, d.convolution, d.w, static_cast<cudnnConvolutionBwdFilterAlgo_t>(e.algorithm),
          &size);
      break;
  }
  return status == CUDNN_STATUS_SUCCESS ? static_cast<std::int64_t>(std::min<std::size_t>(size, kNoLimit))
                                        : 0;
}

// The samples from `done` on, by the caller's own algorithm or by another that fits; nothing is applied
// twice.
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

Choice choose(State& state, const Execution& execution) noexcept {
  const OwnWork guard;
  Choice choice;
  choice.obstacle = "out of memory";
  try {
    choice.obstacle = obstacle_to(state, execution, choice);
  } catch (...) {
    // The caller's own call needs nothing of ours.
  }
  if (choice.obstacle != nullptr) choice.point = nullptr;
  return choice;
}

void count_passed(State& state, const Choice& choice, const Execution& execution) noexcept {
  if (choice.obstacle == nullptr) return;
  const OwnWork guard;
  state.tally().passed(choice.obstacle);
  // The library is asked only about a call that may take more than the limit.
  if (static_cast<std::int64_t>(std::min<std::size_t>(execution.workspace.size, kNoLimit)) >
      state.limit().value_or(kNoLimit))
    state.warn_above_limit(choice.kernel, choice.obstacle, own_workspace(state.library(), execution));
}

bool rescue(State& state, const Choice& choice, const Execution& execution, cudnnStatus_t& status) noexcept {
  if (!choice.is_divisible || state.answers().least_shortfall() == kNoLimit) return false;
  const OwnWork guard;
  const std::size_t given = execution.workspace.data == nullptr ? 0 : execution.workspace.size;
  SeenKernel& kernel = *choice.kernel;
  const char* const own = legacy_algorithm(kernel.pass, execution.algorithm);
  if (own == nullptr || own_workspace(state.library(), execution) <= static_cast<std::int64_t>(given))
    return false;
  try {
    const std::optional<Point> point =
        state.divide_within(execution.handle, kernel, own, static_cast<std::int64_t>(given));
    if (!point) return false;
    state.warn_once(kernel, "the program brings the workspace that it read for another convolution: runs " +
                                describe(point->configuration) + " in " + std::to_string(given) + " bytes");
    cudnnStatus_t rescued{};
    const Work work{kernel,
                    *point,
                    execution.handle,
                    arguments_of(execution, kernel.problem.data_type),
                    {execution.workspace.data, given},
                    own};
    if (!run(state, work, rescued)) return false;
    status = rescued;
    return true;
  } catch (...) {  // the library's own status stands
    return false;
  }
}

bool run(State& state, const Choice& choice, const Execution& execution, cudnnStatus_t& status) noexcept {
  SeenKernel& kernel = *choice.kernel;
  return run(state,
             {kernel, *choice.point, execution.handle, arguments_of(execution, kernel.problem.data_type),
              execution.workspace, legacy_algorithm(kernel.pass, execution.algorithm)},
             status);
}

bool run(State& state, const Work& work, cudnnStatus_t& status) noexcept {
  const OwnWork guard;
  const Point& point = work.point;
  std::int64_t done = 0;
  try {
    point.division->run(work.handle, work.arguments, work.workspace, done);
    point.configuration.size() > 1 ? state.tally().divided() : state.tally().exchanged();
    status = CUDNN_STATUS_SUCCESS;
    return true;
  } catch (const std::exception& error) {
    state.tally().passed("a call of the library failed");
    try {
      state.warn_once(work.kernel, std::to_string(done) + " samples by " + describe(point.configuration) +
                                       ", the others undivided: " + error.what());
    } catch (const std::bad_alloc&) {
      // Then without the warning.
    }
  }
  try {
    status = run_rest(state, work, done);
  } catch (const CallFailed& failure) {
    status = failure.code();
  } catch (...) {
    status = CUDNN_STATUS_ALLOC_FAILED;
  }
  // As long as nothing is computed, the caller's own call can still give its own status.
  return status == CUDNN_STATUS_SUCCESS || done > 0;
}

}  // namespace mucudnn::shim
