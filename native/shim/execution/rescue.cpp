#include "shim/execution/rescue.hpp"

#include <vector>

#include "core/accumulation.hpp"
#include "core/tiles.hpp"
#include "cudnn/descriptors.hpp"

namespace mucudnn::shim {
namespace {

// The slices of a caller's legacy call. They use copies of the caller's descriptors, so convolutions that we
// do not recognise are rescued too. Nothing is planned or measured.
class LegacySlices {
 public:
  LegacySlices(const Library& library, const LegacyCall& call)
      : library_(library),
        call_(call),
        x_(library, call.descriptors.x),
        y_(library, call.descriptors.y),
        z_(library, call.z_descriptor) {}

  bool is_divisible() const {
    return x_.is_described() && y_.is_described() && x_.size(0) == y_.size(0) &&
           (!call_.fusion || (z_.is_described() && z_.size(0) == y_.size(0)));
  }
  std::int64_t samples() const { return x_.size(0); }

  // Returns algorithms that need little workspace, and that cuDNN documents as deterministic.
  std::vector<unsigned> other_algorithms() const {
    if (call_.pass == Pass::forward)
      return {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM};
    return {call_.pass == Pass::backward_data ? unsigned{CUDNN_CONVOLUTION_BWD_DATA_ALGO_1}
                                              : unsigned{CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1}};
  }

  // Runs slices of `size` samples and a smaller last one, from sample `done` on. Adds the computed samples to
  // `done`. Returns nothing if the slices do not fit the workspace, or are more than can be summed in place.
  std::optional<cudnnStatus_t> run(unsigned algorithm, std::int64_t size, std::int64_t& done) {
    const std::int64_t left = samples() - done;
    const std::size_t count = static_cast<std::size_t>((left + size - 1) / size);
    if (count > most_slices_in_place(call_.pass, x_.type()) || !fits(algorithm, std::min(size, left)) ||
        (left % size > 0 && !fits(algorithm, left % size)))
      return std::nullopt;
    for (; done < samples(); done += std::min(size, samples() - done)) {
      LegacyCall slice = slice_of(algorithm, std::min(size, samples() - done));
      slice.x += x_.offset(0, done);
      slice.y += y_.offset(0, done);
      if (slice.fusion) slice.fusion->z += z_.offset(0, done);
      if (adds_slices(call_.pass) && done > 0) slice.beta = factor_one();
      if (const auto status = execute(library_, slice); status != CUDNN_STATUS_SUCCESS) return status;
    }
    return CUDNN_STATUS_SUCCESS;
  }

 private:
  const void* factor_one() const {
    static const float single = 1;
    static const double wide = 1;
    return x_.type() == DataType::f64 ? static_cast<const void*>(&wide) : &single;
  }

  // Returns the call for the first samples. The library refuses the null descriptor of a size that it does
  // not take.
  LegacyCall slice_of(unsigned algorithm, std::int64_t samples) {
    LegacyCall slice = call_;
    slice.algorithm = algorithm;
    slice.descriptors.x = x_.resized(0, samples);
    slice.descriptors.y = y_.resized(0, samples);
    if (slice.fusion) slice.z_descriptor = z_.resized(0, samples);
    return slice;
  }

  bool fits(unsigned algorithm, std::int64_t samples) {
    const auto needed = needed_workspace(library_, slice_of(algorithm, samples));
    return needed && *needed <= call_.workspace.usable();
  }

  const Library& library_;
  const LegacyCall& call_;
  ResizedTensor x_, y_, z_;
};

// Compute the samples from `done` on, and add the computed ones to `done`. Return the last status; nothing if
// no slices fit. If the whole call was tried already, the largest slice is half of it.
std::optional<cudnnStatus_t> run_slices(State& state, const LegacyCall& call, std::int64_t& done,
                                        bool is_whole_tried) {
  LegacySlices slices(state.library(), call);
  if (!slices.is_divisible()) return std::nullopt;
  const std::int64_t left = slices.samples() - done;
  return try_slices(
      is_whole_tried ? (left + 1) / 2 : left, call.algorithm, [&] { return slices.other_algorithms(); },
      [&](unsigned algorithm, std::int64_t size) { return slices.run(algorithm, size, done); });
}

// Runs a choice of the rescue, and adds what it computes to `done`.
cudnnStatus_t run_choice(const KnownCall& call, const PreparedChoice& choice, const Arguments& arguments,
                         Progress& done) noexcept {
  try {
    choice.division->run(call.handle, arguments, call.workspace, done);
  } catch (const CallFailed& failure) {
    return failure.code();
  } catch (const std::exception&) {  // also out of memory: `done` must count in any case
    return CUDNN_STATUS_EXECUTION_FAILED;
  }
  return CUDNN_STATUS_SUCCESS;
}

std::optional<cudnnStatus_t> run_slices(State& state, const KnownCall& call, std::int64_t& done,
                                        bool is_whole_tried) {
  const Decider* const decider = state.find_decider(call.seen);
  if (decider == nullptr) return std::nullopt;
  const Kernel& kernel = call.seen.kernel;
  const auto rest = [&] { return kernel.with_mini_batch(kernel.problem.mini_batch - done); };
  const std::int64_t left = rest().problem.mini_batch;
  const auto attempt = [&](const std::string& algorithm, std::int64_t size) -> std::optional<cudnnStatus_t> {
    const auto choice = decider->prepare_slices(call.handle, rest(), call.seen.api, algorithm, size);
    if (!choice || choice->workspace > bytes(call.workspace.size)) return std::nullopt;
    Progress computed;
    const cudnnStatus_t status = run_choice(call, *choice, advanced(kernel, call.arguments, done), computed);
    done += computed.samples;
    return status;
  };
  return try_slices(
      is_whole_tried ? (left + 1) / 2 : left, std::string(call.own),
      [&] {
        return decider->replacements(call.handle, kernel.with_mini_batch(1), call.seen.api,
                                     bytes(call.workspace.size));
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
      [&] { return decider.replacements(call.handle, sample, call.seen.api, bytes(call.workspace.size)); },
      [&](const std::string& algorithm, std::int64_t size) -> std::optional<cudnnStatus_t> {
        const std::string tiled = to_text(TiledAlgorithm{algorithm, done.tile_steps});
        const auto choice = decider.prepare_slices(call.handle, sample, call.seen.api, tiled, size);
        if (!choice || choice->workspace > bytes(call.workspace.size)) return std::nullopt;
        return run_choice(call, *choice, arguments, of_sample);
      });
}

template <typename Call>
CallResult run_slices_from(State& state, const Call& call, std::int64_t done, bool is_whole_tried) noexcept {
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

template <typename Call>
CallResult run_smaller_slices(State& state, const Call& call) noexcept {
  const CallResult result = run_slices_from(state, call, 0, true);
  if (result.is_final) state.note_lack_of_memory();
  return result;
}

}  // namespace

std::optional<std::size_t> needed_workspace(const Library& library, const LegacyCall& call) noexcept {
  std::size_t size = 0;
  const auto status =
      get_workspace_size(library, call.handle, call.pass, call.descriptors, call.algorithm, size);
  return status == CUDNN_STATUS_SUCCESS ? std::optional(size) : std::nullopt;
}

CallResult rescue(State& state, const LegacyCall& call, cudnnStatus_t status) noexcept {
  if (!is_complete(call)) return {};
  const RecursionGuard guard;
  if (lacks_memory(status)) return run_smaller_slices(state, call);
  if (state.answers().least_shortfall() == kNoLimit) return {};
  const std::size_t needed = needed_workspace(state.library(), call).value_or(0);
  if (needed <= call.workspace.usable()) return {};
  const CallResult result = run_slices_from(state, call, 0, false);
  if (result.is_final) state.note_small_workspace(needed, call.workspace.usable());
  return result;
}

CallResult rescue(State& state, const KnownCall& call, cudnnStatus_t status) noexcept {
  if (!lacks_memory(status)) return {};
  const RecursionGuard guard;
  return run_smaller_slices(state, call);
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

CallResult rescue_rest(State& state, const LegacyCall& call, std::int64_t done) noexcept {
  return run_slices_from(state, call, done, false);
}

CallResult rescue_rest(State& state, const KnownCall& call, std::int64_t done) noexcept {
  return run_slices_from(state, call, done, false);
}

}  // namespace mucudnn::shim
