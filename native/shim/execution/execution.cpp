#include "shim/execution/execution.hpp"

#include "cudnn/descriptors.hpp"

namespace mucudnn::shim {
namespace {

double value_of(const void* scale, DataType type) {
  return type == DataType::f64 ? *static_cast<const double*>(scale)
                               : static_cast<double>(*static_cast<const float*>(scale));
}

Arguments arguments_of(const Library& library, const LegacyCall& call, DataType type) {
  Arguments arguments{
      {call.x, call.w, call.y}, value_of(call.alpha, type), value_of(call.beta, type), call.fusion};
  if (arguments.fusion) {
    arguments.fusion->z_scale = std::exchange(arguments.beta, 0.0);
    arguments.fusion->library = &library;
  }
  return arguments;
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
// they must not change an output that it reads.
bool may_group(const LegacyCall& call, const Kernel& kernel) {
  return value_of(call.beta, kernel.problem.data_type) == 0;
}

// Fills in the kernel and the choice of `decision`. Returns why the call passes through, if it does.
Obstacle fill(State& state, const LegacyCall& call, CallDecision& decision) {
  if (!is_complete(call)) return "a pointer is NULL";
  Obstacle obstacle;
  auto seen = state.find_or_add_kernel(recognise(state.library(), call.descriptors, call.pass), Api::legacy,
                                       obstacle);
  if (obstacle) return obstacle;
  seen->executions.fetch_add(1, std::memory_order_relaxed);
  if (call.fusion && !same_tensor(state.library(), call.z_descriptor, call.descriptors.y))
    return "z is not like y";
  decision.seen = std::move(seen);
  if (call.fusion && !may_be_exchanged(state, *call.fusion)) return "fused without an activation";
  const KnownKernel* const known = state.find_or_decide(call.handle, *decision.seen, false);
  if (known == nullptr) return state.reason_for_unknown();
  decision.choice = known->choice_for(call.algorithm, bytes(call.workspace.usable()),
                                      may_group(call, decision.seen->kernel));
  if (decision.choice == nullptr) {
    // XLA without autotuning passes an address with 0 bytes, and the algorithm that needs no workspace.
    const bool is_empty = call.workspace.data != nullptr && call.workspace.size == 0;
    return is_empty ? "the program brings a workspace of 0 bytes" : "nothing within the workspace";
  }
  if (is_callers_own(*decision.choice, legacy_algorithm(call.pass, call.algorithm))) return kOwnIsBest;
  return {};
}

// Runs the choice and returns whether it succeeds. Counts in `done` what is complete.
bool run_choice(State& state, KnownCall& call, const PreparedChoice& choice, Progress& done) noexcept {
  try {
    if (choice.channels != nullptr || choice.has_tiles) {  // their copies go to the stream of the calls
      state.library().check(state.library().cudnnGetStream(call.handle, &call.arguments.stream),
                            "cudnnGetStream");
    }
    if (choice.channels != nullptr) {
      choice.channels->execute(call.handle, call.arguments, call.workspace);
    } else {
      choice.division->resume(call.handle, call.arguments, call.workspace, done);
    }
    choice.is_divided() ? state.tally().divided(choice.workspace, choice.has_tiles)
                        : state.tally().exchanged(choice.workspace);
    return true;
  } catch (const std::exception& error) {
    state.passed("a call to the library failed", call.seen.kernel.pass);
    state.warn_once(call.seen, [&] {
      const std::string tiles = done.tiles > 0 ? " and " + std::to_string(done.tiles) + " tiles" : "";
      return describe(choice) + " failed after " + std::to_string(done.samples) + " samples" + tiles + ": " +
             error.what();
    });
  }
  return false;
}

KnownCall known_call(const State& state, const CallDecision& decision, const LegacyCall& call) {
  SeenKernel& seen = *decision.seen;
  return {seen, call.handle, arguments_of(state.library(), call, seen.kernel.problem.data_type),
          call.workspace, legacy_algorithm(call.pass, call.algorithm)};
}

// Returns the bytes that the call needs; 0 if the library refuses the call.
std::size_t needed_workspace(const Library& library, const LegacyCall& call) {
  std::size_t size = 0;
  const auto status =
      get_workspace_size(library, call.handle, call.pass, call.descriptors, call.algorithm, size);
  return status == CUDNN_STATUS_SUCCESS ? size : 0;
}

}  // namespace

CallDecision decide_call(State& state, const LegacyCall& call) noexcept {
  const RecursionGuard guard;
  CallDecision decision;
  try {
    decision.obstacle = fill(state, call, decision);
  } catch (...) {  // the caller's own call still works, since it needs no memory of ours
    decision.obstacle = "out of memory";
  }
  if (decision.obstacle) decision.choice = nullptr;
  return decision;
}

void count_passed(State& state, const CallDecision& decision, const LegacyCall& call) noexcept {
  if (!decision.obstacle) return;
  const RecursionGuard guard;
  state.passed(decision.obstacle, call.pass);
  // Ask the library for the workspace only if the call may take more than the limit.
  if (bytes(call.workspace.size) > state.limit().value_or(kNoLimit))
    state.warn_above_limit(decision.seen.get(), decision.obstacle,
                           bytes(needed_workspace(state.library(), call)));
}

CallResult run(State& state, const PreparedChoice& choice, KnownCall call) noexcept {
  const RecursionGuard guard;
  Progress done;
  if (run_choice(state, call, choice, done)) return {CUDNN_STATUS_SUCCESS, true};
  if (done.tiles > 0) {
    const cudnnStatus_t status = complete_tiles(state, call, done);
    if (status != CUDNN_STATUS_SUCCESS || done.samples == call.seen.kernel.problem.mini_batch)
      return {status, true};
  }
  return rescue_rest(state, call, done.samples);
}

CallResult run(State& state, const CallDecision& decision, const LegacyCall& call) noexcept {
  return run(state, *decision.choice, known_call(state, decision, call));
}

CallResult rescue(State& state, const CallDecision& decision, const LegacyCall& call,
                  cudnnStatus_t status) noexcept {
  if (decision.seen == nullptr || legacy_algorithm(call.pass, call.algorithm) == nullptr) return {};
  const RecursionGuard guard;
  const KnownCall known = known_call(state, decision, call);
  if (lacks_memory(status)) return rescue(state, known, status);
  if (state.answers().least_shortfall() == kNoLimit) return {};
  const std::size_t needed = needed_workspace(state.library(), call), brought = call.workspace.usable();
  if (needed <= brought) return {};
  const CallResult result = rescue_rest(state, known, 0);
  if (result.is_final) state.note_small_workspace(needed, brought);
  return result;
}

}  // namespace mucudnn::shim
