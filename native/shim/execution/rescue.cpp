#include "shim/execution/rescue.hpp"

#include "core/accumulation.hpp"
#include "core/tiles.hpp"

namespace mucudnn::shim {
namespace {

// Runs a choice of the rescue, and adds what it computes to `done`.
cudnnStatus_t run_choice(const KnownCall& call, const PreparedChoice& choice, const Arguments& arguments,
                         Progress& done) noexcept {
  try {
    choice.division->resume(call.handle, arguments, call.workspace, done);
  } catch (const CallFailed& failure) {
    return failure.code();
  } catch (const std::exception&) {  // also out of memory: `done` must count in any case
    return CUDNN_STATUS_EXECUTION_FAILED;
  }
  return CUDNN_STATUS_SUCCESS;
}

// Computes the samples from `done` on, and adds the computed ones to `done`. Returns the last status; nothing
// if no slices fit. If the whole call was tried already, the largest slice is half of it.
std::optional<cudnnStatus_t> run_slices(State& state, const KnownCall& call, std::int64_t& done,
                                        bool is_whole_tried) {
  const Decider* const decider = state.find_decider(call.seen);
  if (decider == nullptr) return std::nullopt;
  const Kernel& kernel = call.seen.kernel;
  const auto rest = [&] { return kernel.with_mini_batch(kernel.problem.mini_batch - done); };
  const std::int64_t left = rest().problem.mini_batch;
  const auto attempt = [&](const std::string& algorithm, std::int64_t size) -> std::optional<cudnnStatus_t> {
    const auto choice = decider->prepare_slices(call.handle, rest(), call.seen.api, algorithm, size);
    if (!choice || choice->workspace > bytes(call.workspace.usable())) return std::nullopt;
    Progress computed;
    const cudnnStatus_t status = run_choice(call, *choice, advanced(kernel, call.arguments, done), computed);
    done += computed.samples;
    return status;
  };
  return try_slices(
      is_whole_tried ? (left + 1) / 2 : left, std::string(call.own),
      [&] {
        return decider->replacements(call.handle, kernel.with_mini_batch(1), call.seen.api,
                                     bytes(call.workspace.usable()));
      },
      attempt);
}

// Returns whether the call adds to the output that it writes.
bool reads_output(const KnownCall& call) {
  const Arguments& own = call.arguments;
  const char* const y = own.tensors.y;
  const Epilogue& epilogue = call.seen.kernel.problem.epilogue;
  bool reads = own.beta != 0 || (own.fusion && own.fusion->z_scale != 0 && own.fusion->z == y);
  for (std::size_t i = 0; i < epilogue.size(); ++i) {
    const auto& [kind, scale, factor] = epilogue[i];
    reads |= operand_of(kind) == Operand::like_y && factor != 0 && own.tensors.operands[i] == y;
  }
  return reads;
}

// Computes the tiles that are left of a sample, by the caller's algorithm or by another one. The caller's
// arguments serve any algorithm, because the drop-in keeps no filters.
std::optional<cudnnStatus_t> run_tiles(State& state, const KnownCall& call, const Progress& done) {
  const Decider& decider = state.decider(call.seen);
  const Kernel sample = call.seen.kernel.with_mini_batch(1);
  const Arguments arguments = advanced(call.seen.kernel, call.arguments, done.samples);
  Progress of_sample{0, done.tiles, done.tile_steps};
  return try_slices(
      1, std::string(call.own),
      [&] {
        return decider.replacements(call.handle, sample, call.seen.api, bytes(call.workspace.usable()));
      },
      [&](const std::string& algorithm, std::int64_t size) -> std::optional<cudnnStatus_t> {
        const std::string tiled = to_text(TiledAlgorithm{algorithm, done.tile_steps});
        const auto choice = decider.prepare_slices(call.handle, sample, call.seen.api, tiled, size);
        if (!choice || choice->workspace > bytes(call.workspace.usable())) return std::nullopt;
        return run_choice(call, *choice, arguments, of_sample);
      });
}

CallResult run_slices_from(State& state, const KnownCall& call, std::int64_t done,
                           bool is_whole_tried) noexcept {
  CallResult result;
  try {
    result.status = run_slices(state, call, done, is_whole_tried).value_or(result.status);
  } catch (const CallFailed& failure) {
    result.status = failure.code();
  } catch (...) {
    result.status = CUDNN_STATUS_ALLOC_FAILED;
  }
  result.is_final = result.status == CUDNN_STATUS_SUCCESS || done > 0;
  return result;
}

}  // namespace

CallResult rescue(State& state, const KnownCall& call, cudnnStatus_t status) noexcept {
  if (!lacks_memory(status)) return {};
  const RecursionGuard guard;
  const CallResult result = run_slices_from(state, call, 0, true);
  if (result.is_final) state.note_lack_of_memory();
  return result;
}

cudnnStatus_t complete_tiles(State& state, const KnownCall& call, Progress& done) noexcept {
  if (!reads_output(call)) {
    done = {};
    return CUDNN_STATUS_SUCCESS;
  }
  try {
    const auto status = run_tiles(state, call, done);
    if (status == CUDNN_STATUS_SUCCESS) done = {done.samples + 1, 0, 0};
    return status.value_or(CUDNN_STATUS_EXECUTION_FAILED);
  } catch (const CallFailed& failure) {
    return failure.code();
  } catch (...) {
    return CUDNN_STATUS_ALLOC_FAILED;
  }
}

CallResult rescue_rest(State& state, const KnownCall& call, std::int64_t done) noexcept {
  return run_slices_from(state, call, done, false);
}

}  // namespace mucudnn::shim
