#include "shim/graph/execution_plan.hpp"

#include "shim/execution/execution.hpp"

namespace mucudnn::shim {
namespace {

// Returns the addresses in a variant pack; nothing if one of them is missing.
std::optional<Arguments> arguments_of(const ExecutionPlan& plan, const Shadow& pack) {
  const auto uids = pack.values<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack.values<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  const auto pointer = [&](std::int64_t uid) {
    const auto at = static_cast<std::size_t>(std::find(uids.begin(), uids.end(), uid) - uids.begin());
    return at < uids.size() && at < pointers.size() ? static_cast<char*>(pointers[at]) : nullptr;
  };
  const GraphConvolution& c = plan.convolution;
  Tensors tensors{pointer(c.x), pointer(c.w), pointer(c.y)};
  bool is_complete = tensors.x != nullptr && tensors.w != nullptr && tensors.y != nullptr;
  const Epilogue& epilogue = plan.seen->kernel.problem.epilogue;
  for (std::size_t i = 0; i < epilogue.size(); ++i) {
    if (operand_of(epilogue[i].kind) == Operand::none) continue;
    tensors.operands[i] = pointer(c.operands[i]);
    is_complete = is_complete && tensors.operands[i] != nullptr;
  }
  if (!is_complete) return std::nullopt;
  return Arguments{tensors, c.alpha, c.beta};
}

// Returns the workspace of a variant pack, which gives the address without the size.
Scratch workspace_of(State& state, const ExecutionPlan& plan, const Shadow& pack) {
  auto* const data = static_cast<char*>(pack.value<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, nullptr));
  return {data, data == nullptr ? 0 : static_cast<std::size_t>(plan.granted_workspace(state.answers()))};
}

}  // namespace

std::int64_t ExecutionPlan::granted_workspace(const WorkspaceAnswers& answers) const {
  // Programs may read the size of a configuration after that of its plan.
  if (const std::uint64_t revision = answers.revision();
      configured && revision != revision_.load(std::memory_order_acquire)) {
    least_now_.store(answers.least_of(*configured), std::memory_order_relaxed);
    revision_.store(revision, std::memory_order_release);
  }
  std::int64_t least = std::min(reported_workspace, least_now_.load(std::memory_order_relaxed));
  if (answers.is_incomplete()) least = std::min(least, own.workspace);
  if (is_asked.load(std::memory_order_relaxed)) return least;
  return std::min({least, own.workspace, least_answer, answers.least_shortfall()});
}

std::int64_t report_workspace(State& state, const ExecutionPlan& plan) noexcept {
  if (!plan.is_asked.exchange(true, std::memory_order_relaxed) && plan.configured) {
    state.answers().note(*plan.configured, plan.reported_workspace, plan.own.workspace);
    if (!plan.is_restored) state.answers().note_from_heuristics(*plan.configured, plan.reported_workspace);
  }
  return plan.reported_workspace;
}

void note_end(State& state, const ExecutionPlan& plan) noexcept {
  if (plan.configured && plan.is_asked && !plan.is_executed && plan.reported_workspace > 0)
    state.answers().note_unused(*plan.configured, plan.reported_workspace);
}

CallResult rescue(State& state, const ExecutionPlan& plan, cudnnHandle_t handle,
                  cudnnBackendDescriptor_t pack, cudnnStatus_t status) noexcept {
  if (!lacks_memory(status) || plan.seen == nullptr || !plan.convolution.is_planned()) return {};
  const RecursionGuard guard;
  try {
    const auto shadow = state.shadows().find_finalized(pack);
    const auto arguments = shadow == nullptr ? std::nullopt : arguments_of(plan, *shadow);
    if (!arguments) return {};
    return rescue(state,
                  KnownCall{*plan.seen, handle, *arguments, workspace_of(state, plan, *shadow),
                            plan.own.algorithm.c_str()},
                  status);
  } catch (const std::bad_alloc&) {
    return {};
  }
}

CallResult execute(State& state, const ExecutionPlan& plan, cudnnHandle_t handle,
                   cudnnBackendDescriptor_t pack) noexcept {
  if (plan.configured && !plan.is_executed.load(std::memory_order_relaxed) &&
      !plan.is_executed.exchange(true, std::memory_order_relaxed))
    state.answers().note_used(*plan.configured);
  if (plan.seen != nullptr) plan.seen->executions.fetch_add(1, std::memory_order_relaxed);
  // Leaves the execution to the program's own plan if that fits the workspace.
  const auto refuse = [&](cudnnStatus_t status) -> CallResult {
    return {status, !plan.own_fits(state.answers())};
  };
  const auto pass_on = [&](Obstacle reason) {
    state.passed(reason, plan.convolution.recognised.kernel.pass);
    state.warn_above_limit(plan.seen.get(), reason, plan.own.workspace);
    return refuse(CUDNN_STATUS_BAD_PARAM);
  };
  if (plan.obstacle) return pass_on(plan.obstacle);
  try {
    const auto shadow = state.shadows().find_finalized(pack);
    if (shadow == nullptr || shadow->type() != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR) {
      const CallResult result = pass_on("a variant pack that was not finalized");
      // The library refuses a pack that is not finalized, or is not there, before it computes.
      const bool is_refused = pack == nullptr || state.shadows().find(pack) != nullptr;
      return is_refused ? CallResult{} : result;
    }
    if (handle == nullptr)
      return pass_on("a pointer is NULL"), CallResult{};  // the library refuses that, too
    const auto arguments = arguments_of(plan, *shadow);
    if (!arguments) return pass_on("a pointer is NULL");
    const Scratch workspace = workspace_of(state, plan, *shadow);
    const std::optional<PreparedChoice>& choice =
        plan.choice->workspace <= static_cast<std::int64_t>(workspace.size) ? plan.choice
                                                                            : plan.without_workspace;
    if (!choice || is_callers_own(*choice, plan.own.algorithm.c_str()))
      return pass_on("nothing within the workspace");
    const CallResult result =
        run(state, *choice, {*plan.seen, handle, *arguments, workspace, plan.own.algorithm.c_str()});
    return result.is_final ? result : refuse(result.status);
  } catch (const std::bad_alloc&) {
    return refuse(CUDNN_STATUS_ALLOC_FAILED);
  }
}

}  // namespace mucudnn::shim
