#include "shim/graph/execution_plan.hpp"

#include <algorithm>

#include "cudnn/engines/graph_engine.hpp"

namespace mucudnn::shim {
namespace {

constexpr int kMostRefusals = 16;  // attempts to prepare a configuration while one plan is finalized

// Returns the operation graph of an engine configuration, which the program or cuDNN's heuristics made.
// Returns null if the configuration has attributes that we do not know.
std::shared_ptr<const Shadow> graph_of(const Shadow& config) {
  if (!config.has_only({CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_ATTR_ENGINECFG_ENGINE,
                        CUDNN_ATTR_ENGINECFG_KNOB_CHOICES}))
    return nullptr;
  const auto engine = config.referred_one(CUDNN_ATTR_ENGINECFG_ENGINE);
  if (engine == nullptr) return config.referred_one(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
  if (!engine->has_only({CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_ATTR_ENGINE_GLOBAL_INDEX})) return nullptr;
  return engine->referred_one(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
}

// Returns whether the program made an engine configuration by its engine's number, instead of taking the
// engine or the configuration out of a result of cuDNN's heuristics.
bool is_made_by_number(const Shadow& config) {
  const auto engine = config.referred_one(CUDNN_ATTR_ENGINECFG_ENGINE);
  return engine != nullptr && engine->find(CUDNN_ATTR_ENGINE_GLOBAL_INDEX) != nullptr;
}

// Returns the math type that the engine's numerical notes imply: in the graph API the engine fixes the
// arithmetic. In fp32 it is never the `default` of the legacy API, which leaves TF32 to cuDNN.
Math math_of(DataType type, const EngineNotes& notes) {
  if (type != DataType::f32) return Math::standard;
  return notes.has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE) ? Math::tf32 : Math::fma;
}

// Names the configuration without the math type, which is not known before the engine.
EngineConfiguration name_configuration(const GraphConvolution& convolution, const std::string& engine) {
  const Kernel& kernel = convolution.recognised.kernel;
  return EngineConfiguration(to_text(kernel.with_mini_batch(1)), kernel.problem.mini_batch, engine);
}

// Removes zeros at the end: some programs count the terminating zero of a text, others do not.
std::string trimmed(const char* text, std::size_t size) {
  while (size > 0 && text[size - 1] == '\0') --size;
  return {text, size};
}

// Returns the most bytes that an execution of a restored plan may use: its own engine's workspace, or the
// most that the program read from plans of this configuration that came from the heuristics.
std::int64_t most_for_restored(State& state, const ExecutionPlan& plan) {
  return std::max(plan.own.workspace, state.answers().most_from_heuristics(*plan.configured));
}

// Returns which choices may replace the program's own execution plan.
Permission permission_of(State& state, const EngineNotes& notes, const ExecutionPlan& plan) {
  Permission permission;
  permission.deterministic_only = !notes.has(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
  permission.legacy_only = !plan.convolution.is_planned();
  permission.may_group = plan.convolution.beta == 0;
  permission.limit = state.limit().value_or(plan.known->planned_workspace().value_or(plan.own.workspace));
  if (plan.is_restored) permission.limit = std::min(permission.limit, most_for_restored(state, plan));
  return permission;
}

// Returns the prepared choice that runs the plan within `workspace` bytes. It is prepared now because an
// execution must not plan. A slice that cannot be prepared is not tried again in this process; the next best
// choice takes its place.
std::optional<PreparedChoice> prepare_choice(State& state, cudnnHandle_t handle, ExecutionPlan& plan,
                                             const Permission& permission, std::int64_t workspace) {
  SeenKernel& seen = *plan.seen;
  for (int refusals = 0; refusals < kMostRefusals && plan.known != nullptr; ++refusals) {
    std::optional<PreparedChoice> choice = plan.known->choice_within(permission, workspace);
    if (!choice || is_callers_own(*choice, plan.own.algorithm.c_str())) return choice;
    try {
      state.decider(seen).make_ready(handle, seen.kernel, seen.api, *choice);
      if (choice->workspace <= std::min(workspace, permission.limit)) return choice;
      if (choice->channels != nullptr) return std::nullopt;
      throw SliceRefused(choice->division->slice_with_most_workspace(),
                         "it needs more workspace than when it was measured");
    } catch (const SliceRefused& refusal) {
      state.warn_once(seen, [&] { return "not used: " + describe(*choice) + ": " + refusal.what(); });
      plan.known = state.decide_without(handle, seen, plan.own, refusal.slice());
    }
  }
  return std::nullopt;
}

cudnnHandle_t handle_of(const Shadow& plan, const Shadow& graph) {
  return plan.value(CUDNN_ATTR_EXECUTION_PLAN_HANDLE,
                    graph.value<cudnnHandle_t>(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, nullptr));
}

// Fills in the decisions about the plan. Returns why the plan passes through, if it does.
Obstacle fill(State& state, const Shadow& shadow, const Shadow& graph, const Backend& plan,
              ExecutionPlan& made) {
  made.own.workspace = plan.value<std::int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
  made.reported_workspace = made.own.workspace;
  GraphConvolution& convolution = made.convolution;
  if (convolution.recognised.obstacle) return convolution.recognised.obstacle;
  const auto handle = handle_of(shadow, graph);
  if (handle == nullptr ||
      !shadow.has_only({CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG}))
    return "a plan with an unknown attribute";
  const auto configs =
      plan.descriptors(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, 1);
  const EngineNotes notes = notes_of(engine_of(configs.at(0)));
  EngineName engine = name_of(configs.at(0));
  made.configured = name_configuration(convolution, to_text(engine));
  if (!state.answers().make_room(*made.configured))
    return "more engine configurations than mucudnn remembers";
  made.least_answer = state.answers().least(*made.configured);
  Problem& problem = convolution.recognised.kernel.problem;
  // The program plans for addresses at multiples of 16 bytes. The slices of an odd sample are less aligned,
  // so they have other engines.
  engine.is_for_aligned = usual_alignment(problem) < 16;
  made.own.algorithm = to_text(engine);
  made.own.notes = notes.text();
  // Such an engine needs no workspace, and graph_engine.cpp lists no engine of this kind to compare it with.
  if (problem.is_fused() && notes.has(CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION))
    return "fused by an engine that is compiled at run time";
  problem.math = math_of(problem.data_type, notes);
  Obstacle obstacle;
  made.seen = state.find_or_add_kernel(convolution.recognised, Api::graph, obstacle);
  if (made.seen == nullptr) return obstacle;
  made.known = state.find_or_decide_for_plan(handle, *made.seen, made.own);
  if (made.known == nullptr) return state.reason_for_unknown();
  const Permission permission = permission_of(state, notes, made);
  const bool own_is_allowed = made.own.workspace <= permission.limit &&
                              (!state.is_strict() || !is_transform(made.own.algorithm, made.own.notes));
  if (own_is_allowed && made.known->is_measured() && !made.known->is_measured_against(made.own.algorithm))
    return "the caller's own engine is not measured";  // so a replacement might be slower
  // First choose within the least workspace that the program has read for this configuration: it may allocate
  // no more.
  made.choice = prepare_choice(state, handle, made, permission, made.least_answer);
  if (!made.choice && made.own.workspace > made.least_answer)
    made.choice = prepare_choice(state, handle, made, permission, kNoLimit);
  if (!made.choice) return "nothing within the workspace";
  if (is_callers_own(*made.choice, made.own.algorithm.c_str())) return kOwnIsBest;
  if (made.choice->workspace > 0) made.without_workspace = prepare_choice(state, handle, made, permission, 0);
  // Report enough workspace for the program's own plan too, if the limit allows it. That plan then still runs
  // if the division fails, or if the program makes a CUDA graph.
  made.reported_workspace =
      std::max(made.choice->workspace, own_is_allowed ? made.own.workspace : std::int64_t{0});
  return {};
}

// Divides the plan further if the program gave up another plan of this convolution, which needs more memory
// than the device has free. Each plan that the program gives up halves the workspace of the next plan.
void fit_free_memory(State& state, cudnnHandle_t handle, ExecutionPlan& made) {
  const auto [least, largest] = state.answers().unused(*made.configured);
  const Decider* const decider = state.find_decider(*made.seen);
  if (least == kNoLimit || decider == nullptr) return;
  const auto available = static_cast<std::int64_t>(decider->device().available());
  if (available >= largest) return;
  const std::int64_t most = std::min({available, least / 2, made.least_answer});
  if (made.reported_workspace <= most) return;
  const bool is_planned = made.convolution.is_planned();
  std::optional<PreparedChoice> choice;
  if (made.known != nullptr) {
    const std::int64_t limit = std::min(most, state.limit().value_or(kNoLimit));
    choice =
        prepare_choice(state, handle, made, {limit, is_deterministic(made.own.notes), !is_planned}, most);
  }
  if (!choice && is_planned) {
    const SeenKernel& seen = *made.seen;
    const Kernel& kernel = seen.kernel;
    const auto attempt = [&](const std::string& algorithm,
                             std::int64_t size) -> std::optional<cudnnStatus_t> {
      choice = decider->prepare_slices(handle, kernel, seen.api, algorithm, size);
      if (choice && choice->workspace > most) choice.reset();
      return choice ? std::optional(CUDNN_STATUS_SUCCESS) : std::nullopt;
    };
    const auto others = [&] {
      return decider->replacements(handle, kernel.with_mini_batch(1), seen.api, most);
    };
    try_slices((kernel.problem.mini_batch + 1) / 2, made.own.algorithm, others, attempt);
  }
  if (!choice || is_callers_own(*choice, made.own.algorithm.c_str())) return;
  state.warn_once(*made.seen, [&, largest = largest] {
    return "the device has no memory for " + std::to_string(largest) +
           " bytes of workspace: " + describe(choice->configuration) + " needs " +
           std::to_string(choice->workspace);
  });
  made.obstacle = {};
  made.reported_workspace = choice->workspace;
  if (made.without_workspace && made.without_workspace->workspace > 0) made.without_workspace.reset();
  made.choice = std::move(choice);
}

// Describes the execution plan of a graph. Returns null if the graph holds no convolution.
std::shared_ptr<const ExecutionPlan> plan_of_graph(State& state, const Shadow& shadow, const Shadow& graph,
                                                   const Backend& plan, bool is_restored) {
  auto made = std::make_shared<ExecutionPlan>();
  made->is_restored = is_restored;
  made->convolution = recognise_graph(graph);
  if (!made->convolution.is_convolution) return nullptr;
  made->obstacle = fill(state, shadow, graph, plan, *made);
  if (made->seen == nullptr || state.keeps_samples_apart(made->convolution.recognised.kernel.pass))
    return made;
  try {
    fit_free_memory(state, handle_of(shadow, graph), *made);
  } catch (const EngineError&) {
    // The device does not say how much memory is free: the plan stays as it is.
  }
  return made;
}

// Describes an execution plan that the program made from the text of another one. It passes through, unless
// the text came from a plan that runs in less workspace than the library's own. The new plan then runs in the
// same way, because the program may bring only the workspace that it read there.
std::shared_ptr<const ExecutionPlan> plan_of_text(State& state, const Shadow& shadow, const Backend& plan) {
  const auto set = shadow.values<char>(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION);
  const std::string text = trimmed(set.data(), set.size());
  if (const auto known = state.shadows().plan_of_text(text)) {
    const SeenKernel& seen = *known->seen;
    if (state.decider(seen).device().current() == seen.device) return known;
  }
  if (text.find("OPERATION_CONVOLUTION_") == std::string::npos) return nullptr;
  auto made = std::make_shared<ExecutionPlan>();
  made->own.workspace = plan.value<std::int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
  made->reported_workspace = made->own.workspace;
  made->obstacle = "a plan made from JSON";
  return made;
}

}  // namespace

std::shared_ptr<const ExecutionPlan> make_execution_plan(State& state,
                                                         cudnnBackendDescriptor_t plan) noexcept {
  const RecursionGuard guard;
  try {
    const auto shadow = state.shadows().find(plan);
    if (shadow == nullptr || shadow->type() != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) return nullptr;
    const Backend finalized(state.library(), plan);
    const auto config = shadow->referred_one(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    if (config == nullptr) return plan_of_text(state, *shadow, finalized);
    const auto graph = graph_of(*config);
    if (graph == nullptr) return state.note_unread_plan(), nullptr;
    return plan_of_graph(state, *shadow, *graph, finalized, is_made_by_number(*config));
  } catch (const std::exception&) {
    state.note_unread_plan();
    return nullptr;  // the library does not describe this plan, so it passes through
  }
}

void note_text(State& state, const std::shared_ptr<const ExecutionPlan>& plan, const char* text,
               std::int64_t size) noexcept {
  if (plan->reported_workspace >= plan->own.workspace)
    return;  // the library's plan fits the reported workspace
  try {
    state.shadows().set_text(trimmed(text, static_cast<std::size_t>(size)), plan);
  } catch (const std::bad_alloc&) {
    // Out of memory: a plan made from this text reports the library's own workspace.
  }
}

void note_workspace(State& state, cudnnBackendDescriptor_t config, std::int64_t bytes) noexcept {
  const RecursionGuard guard;
  try {
    const auto shadow = state.shadows().find(config);
    const auto graph = shadow == nullptr ? nullptr : graph_of(*shadow);
    if (graph == nullptr) return;
    const GraphConvolution convolution = recognise_graph(*graph);
    if (!convolution.is_convolution || convolution.recognised.obstacle) return;
    const std::string engine = to_text(name_of(Backend(state.library(), config)));
    state.answers().note(name_configuration(convolution, engine), bytes, bytes);
  } catch (const std::bad_alloc&) {
    state.answers().note_lost();
  } catch (const CallFailed& failure) {
    if (!is_lasting(failure.code())) state.answers().note_lost();
  } catch (const std::exception&) {
    // The library never names the engine, so a plan with this configuration is not replaced either.
  }
}

}  // namespace mucudnn::shim
