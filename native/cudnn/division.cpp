#include "cudnn/division.hpp"

namespace mucudnn {

namespace {

// Returns the bytes from one sample to the next of a tensor with `in_memory` channels there; 0 means its own.
std::int64_t step(std::int64_t sample, DataType type, std::int64_t channels, std::int64_t in_memory) {
  const std::int64_t elements = in_memory == 0 ? sample : sample / channels * in_memory;
  return elements * static_cast<std::int64_t>(size_of(type));
}

std::int64_t y_step(const Problem& p, const Pitch& pitch) {
  return step(p.y_sample(), p.type_of_y(), p.out_channels, pitch.y);
}

}  // namespace

Tensors advanced(const Problem& problem, const Tensors& tensors, std::int64_t first, const Pitch& pitch) {
  Tensors at = tensors;
  at.x += first * step(problem.x_sample(), problem.data_type, problem.in_channels, pitch.x);
  at.y += first * y_step(problem, pitch);
  for (std::size_t i = 0; i < problem.epilogue.size(); ++i) {
    if (operand_of(problem.epilogue[i].kind) == Operand::like_y)
      at.operands[i] += first * y_step(problem, pitch);
  }
  return at;
}

Arguments advanced(const Kernel& kernel, const Arguments& arguments, std::int64_t first, const Pitch& pitch) {
  Arguments at = arguments;
  at.tensors = advanced(kernel.problem, arguments.tensors, first, pitch);
  if (at.fusion) at.fusion->z += first * y_step(kernel.problem, pitch);
  if (adds_slices(kernel.pass) && first > 0) at.beta = 1;
  return at;
}

std::vector<Slice> in_order(const std::vector<Slice>& slices, std::int64_t mini_batch) {
  return in_order(slices, &Slice::micro_batch, mini_batch,
                  "the micro-batches do not add up to the mini-batch of ");
}

Division::Division(Engine& engine, Device& device, const Kernel& kernel, const std::vector<Slice>& slices)
    : Division(device, kernel, slices, {}, [&](const Kernel& slice, const std::string& algorithm) {
        return engine.prepare(slice, algorithm);
      }) {}

Division::Division(Device& device, const Kernel& kernel, const std::vector<Slice>& slices, const Pitch& pitch,
                   const Prepare& prepare)
    : device_(device), kernel_(kernel), pitch_(pitch) {
  const std::vector<Slice> ordered = in_order(slices, kernel.problem.mini_batch);
  accumulator_size_ = required_accumulator(device, kernel, slices.size());
  std::map<const PreparedKernel*, std::size_t> offsets;  // the kernels' kept filters in memory
  for (const Slice& slice : ordered) {
    auto& prepared = prepared_[{slice.micro_batch, slice.algorithm}];
    if (prepared == nullptr) {
      try {
        prepared = prepare(kernel.with_mini_batch(slice.micro_batch), slice.algorithm);
      } catch (const EngineError& error) {
        throw SliceRefused(slice, error.what());
      }
    }
    if (steps_.empty() || prepared->workspace() > algorithms_workspace_) slice_with_most_workspace_ = slice;
    algorithms_workspace_ = std::max(algorithms_workspace_, prepared->workspace());
    const auto [kept, is_new] = offsets.try_emplace(prepared.get(), kept_filter_size_);
    if (is_new) kept_filter_size_ += aligned(prepared->kept_filter_size());
    steps_.push_back({slice.micro_batch, prepared.get(), kept->second});
  }
}

void Division::keep_filter(const char* w, char* kept) const {
  const PreparedKernel* last = nullptr;
  for (const Step& step : steps_) {
    if (step.prepared != last) step.prepared->keep_filter(w, kept + step.kept_filter_at);
    last = step.prepared;
  }
}

std::vector<std::string> Division::notes() const {
  std::vector<std::string> notes;
  for (const auto& [part, prepared] : prepared_) notes.push_back(prepared->notes());
  return notes;
}

void Division::run(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace) const {
  Progress done;
  run(handle, arguments, workspace, done);
}

void Division::run(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace,
                   Progress& done) const {
  require(workspace, "the division needs");
  Arguments slice = arguments;
  // With an accumulator, the output is written once at the end, or not at all.
  const bool is_accumulated = accumulator_size_ > 0;
  SliceSum sum(device_, kernel_, is_accumulated ? workspace.data + aligned(algorithms_workspace_) : nullptr,
               slice);
  const Scratch algorithms{workspace.data, is_accumulated ? algorithms_workspace_ : workspace.size};
  std::int64_t first = 0;
  for (const Step& step : steps_) {
    Arguments at = advanced(kernel_, slice, first, pitch_);
    at.beta = slice.beta;
    at.kept_filter = step.prepared->kept_in(at.kept_filter, step.kept_filter_at);
    Progress of_slice{0, done.tiles, done.tile_steps};
    try {
      step.prepared->resume(handle, at, algorithms, of_slice);
    } catch (...) {
      if (!is_accumulated) done = {first + of_slice.samples, of_slice.tiles, of_slice.tile_steps};
      throw;
    }
    sum.add_slice();
    first += step.micro_batch;
    if (!is_accumulated) done = {first, 0, 0};
  }
  sum.store();
  done = {first, 0, 0};
}

}  // namespace mucudnn
