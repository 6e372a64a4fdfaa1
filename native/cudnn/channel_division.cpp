#include "cudnn/channel_division.hpp"

#include <algorithm>

namespace mucudnn {
namespace {

// Returns the positive sizes, which must add to `whole`, in an order in which each part begins at a multiple
// of the greatest power of two in its size.
template <typename Part, typename Size>
std::vector<Part> in_order(std::vector<Part> parts, std::int64_t whole, const std::string& sum, Size size) {
  std::int64_t left = whole;
  const bool in_range = std::all_of(parts.begin(), parts.end(), [&](const Part& part) {
    if (size(part) < 1 || size(part) > left) return false;
    left -= size(part);
    return true;
  });
  if (!in_range || left != 0) throw std::invalid_argument(sum + std::to_string(whole));
  const auto power = [&](const Part& part) { return size(part) & -size(part); };
  std::stable_sort(parts.begin(), parts.end(),
                   [&](const Part& a, const Part& b) { return power(a) > power(b); });
  return parts;
}

// Copies the pieces of a tensor into packed memory.
void copy_in(Device& device, char* packed, const char* tensor, const Pieces& pieces, cudaStream_t stream) {
  device.copy_pieces(packed, pieces.width, tensor + pieces.offset, pieces.pitch, pieces.width, pieces.count,
                     stream);
}

void copy_out(Device& device, char* tensor, const char* packed, const Pieces& pieces, cudaStream_t stream) {
  device.copy_pieces(tensor + pieces.offset, pieces.pitch, packed, pieces.width, pieces.width, pieces.count,
                     stream);
}

}  // namespace

ChannelDivision::ChannelDivision(Engine& engine, Device& device, const Kernel& kernel,
                                 const std::vector<Group>& groups)
    : device_(device), kernel_(kernel) {
  std::int64_t first = 0;
  for (const Group& group : in_order(groups, divided_channels(kernel), "the groups do not add to channels: ",
                                     [](const Group& one) { return one.channels; })) {
    Part part{first, group.channels, group_kernel(kernel, group.channels), {}, 0, 0};
    part.accumulator_size = required_accumulator(device, part.kernel, group.slices.size());
    for (const Slice& slice : in_order(group.slices, kernel.problem.mini_batch,
                                       "the micro-batches do not add to the mini-batch of ",
                                       [](const Slice& one) { return one.micro_batch; })) {
      auto& prepared = prepared_[{group.channels, slice.micro_batch, slice.algorithm}];
      if (prepared == nullptr)
        prepared = engine.prepare(part.kernel.with_mini_batch(slice.micro_batch), slice.algorithm);
      const GroupCopies copies(kernel, group.channels, slice.micro_batch);
      part.accumulator_at = std::max(part.accumulator_at, copies.size + prepared->workspace());
      part.steps.push_back({slice.micro_batch, prepared.get()});
    }
    workspace_ = std::max(workspace_, part.accumulator_at + part.accumulator_size);
    first += group.channels;
    parts_.push_back(std::move(part));
  }
}

std::vector<std::string> ChannelDivision::notes() const {
  std::vector<std::string> notes;
  for (const auto& [part, prepared] : prepared_) notes.push_back(prepared->notes());
  return notes;
}

void ChannelDivision::run(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace) const {
  if (workspace.size < this->workspace()) {
    throw EngineError("the channel groups need a workspace of " + std::to_string(this->workspace()) +
                      " bytes, " + std::to_string(workspace.size) + " are given");
  }
  for (const Part& part : parts_) run_part(handle, part, arguments, workspace.data);
}

void ChannelDivision::run_part(cudnnHandle_t handle, const Part& part, Arguments arguments,
                               char* scratch) const {
  const Pieces filter = filter_pieces(kernel_, part.first, part.channels);
  if (filter.is_packed()) {
    arguments.tensors.w += filter.offset;
  } else {
    copy_in(device_, scratch, arguments.tensors.w, filter, arguments.stream);
    arguments.tensors.w = scratch;
  }
  std::optional<FilterSum> sum;
  char* const gradient = arguments.tensors.w;
  const double beta = arguments.beta;
  if (part.accumulator_size > 0) {
    sum.emplace(*device_.accumulator(), part.kernel.problem, scratch + aligned(part.accumulator_at));
    arguments.tensors.w = sum->slice();
    arguments.beta = 0;
  }
  std::int64_t done = 0;
  for (const Step& step : part.steps) {
    run_step(handle, part, step, done, arguments, scratch);
    done += step.micro_batch;
    if (sum) {
      sum->add_slice();
    } else if (adds_slices(kernel_.pass)) {
      arguments.beta = 1;
    }
  }
  if (sum) sum->store(beta, gradient);
}

void ChannelDivision::run_step(cudnnHandle_t handle, const Part& part, const Step& step, std::int64_t sample,
                               const Arguments& whole, char* scratch) const {
  Arguments at = whole;
  at.tensors = advanced(kernel_.problem, whole.tensors, sample);
  const bool is_input = kernel_.pass == Pass::backward_filter;
  char*& divided = kernel_.pass == Pass::backward_data ? at.tensors.x : at.tensors.y;
  char* const tensor = divided;
  const Pieces pieces = sample_pieces(kernel_, part.first, part.channels, step.micro_batch);
  const GroupCopies copies(kernel_, part.channels, step.micro_batch);
  divided = pieces.is_in_place() ? tensor + pieces.offset : scratch + copies.samples;
  if (!pieces.is_in_place() && (is_input || at.beta != 0))
    copy_in(device_, divided, tensor, pieces, at.stream);
  step.prepared->execute(handle, at, {scratch + copies.size, step.prepared->workspace()});
  if (!pieces.is_in_place() && !is_input) copy_out(device_, tensor, divided, pieces, at.stream);
}

}  // namespace mucudnn
