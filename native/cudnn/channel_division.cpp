#include "cudnn/channel_division.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "cudnn/descriptors.hpp"

namespace mucudnn {
namespace {

// Copies the pieces of a tensor into packed memory.
void copy_in(Device& device, char* packed, const char* tensor, const Pieces& pieces, cudaStream_t stream) {
  device.copy_pieces(packed, pieces.width, tensor + pieces.offset, pieces.pitch, pieces.width, pieces.count,
                     stream);
}

void copy_out(Device& device, char* tensor, const char* packed, const Pieces& pieces, cudaStream_t stream) {
  device.copy_pieces(tensor + pieces.offset, pieces.pitch, packed, pieces.width, pieces.width, pieces.count,
                     stream);
}

std::size_t bytes_of(std::int64_t elements, DataType type) {
  return static_cast<std::size_t>(elements) * size_of(type);
}

}  // namespace

ChannelDivision::ChannelDivision(Engine& engine, Device& device, const Kernel& kernel,
                                 const std::vector<Group>& groups)
    : device_(device), kernel_(kernel) {
  std::int64_t first = 0;
  const bool of_inputs = !groups.empty() && groups.front().of_inputs;
  for (const Group& group : in_order(groups, &Group::channels, divided_channels(kernel, of_inputs),
                                     "the groups do not add up to channels: ")) {
    Part part{first, group.channels, of_inputs, group_kernel(kernel, group.channels, of_inputs), {}, 0, 0};
    part.accumulator_size = required_accumulator(device, part.kernel, group.slices.size());
    for (const Slice& slice : in_order(group.slices, kernel.problem.mini_batch)) {
      Prepared& prepared = prepared_[{group.channels, slice.micro_batch, slice.algorithm}];
      if (prepared.kernel == nullptr) prepared = prepare(engine, part, slice);
      const GroupCopies copies(kernel, group.channels, slice.micro_batch, of_inputs, prepared.takes_strides);
      part.accumulator_at = std::max(part.accumulator_at, copies.size + prepared.workspace);
      part.steps.push_back({slice.micro_batch, &prepared, copies});
    }
    workspace_ = std::max(workspace_, part.accumulator_at + part.accumulator_size);
    first += group.channels;
    parts_.push_back(std::move(part));
  }
}

ChannelDivision::Prepared ChannelDivision::prepare(Engine& engine, const Part& part,
                                                   const Slice& slice) const {
  const Kernel kernel = part.kernel.with_mini_batch(slice.micro_batch);
  const ChannelRange range(kernel_, part.first, part.channels, part.of_inputs);
  const Pitch pitch = slice_pitch(kernel_, range, slice.micro_batch);
  Prepared packed{engine.prepare(kernel, slice.algorithm), false, 0};
  packed.workspace = packed.kernel->workspace();
  if (pitch.x == 0 && pitch.y == 0) return packed;
  try {
    // An algorithm that needs more workspace for strided tensors than for packed ones works on packed copies.
    // Its notes lack `strided` for the same reason, so that plans count these copies.
    Prepared strided{engine.prepare(kernel, slice.algorithm, pitch), true, packed.workspace};
    if (strided.kernel->workspace() <= packed.workspace) return strided;
  } catch (const EngineError&) {
    // The algorithm takes packed tensors only.
  }
  return packed;
}

std::vector<std::string> ChannelDivision::notes() const {
  std::vector<std::string> notes;
  for (const auto& [part, prepared] : prepared_) notes.push_back(prepared.kernel->notes());
  return notes;
}

void ChannelDivision::run(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace) const {
  require(workspace, "the channel groups need");
  for (const Part& part : parts_) run_part(handle, part, arguments, workspace.data);
}

void ChannelDivision::run_part(cudnnHandle_t handle, const Part& part, Arguments arguments,
                               char* scratch) const {
  const ChannelRange range(kernel_, part.first, part.channels, part.of_inputs);
  const Pieces filter = filter_pieces(kernel_, range);
  char* const whole_filter = arguments.tensors.w;
  if (filter.is_packed()) {
    arguments.tensors.w += filter.offset;
  } else {
    if (kernel_.pass != Pass::backward_filter || arguments.beta != 0)
      copy_in(device_, scratch, whole_filter, filter, arguments.stream);
    arguments.tensors.w = scratch;
  }
  for (std::size_t i = 0; i < kernel_.problem.epilogue.size(); ++i) {
    if (operand_of(kernel_.problem.epilogue[i].kind) == Operand::channels)
      arguments.tensors.operands[i] += bytes_of(range.out_first, kernel_.problem.data_type);
  }
  if (arguments.bias != nullptr) arguments.bias += bytes_of(range.out_first, kernel_.problem.data_type);
  std::optional<ResizedTensor> bias;
  if (arguments.fusion) {
    Fusion& fusion = *arguments.fusion;
    bias.emplace(*fusion.library, fusion.bias_descriptor);
    if (!bias->is_described()) throw EngineError("the library does not describe the bias");
    fusion.bias = static_cast<const char*>(fusion.bias) + bias->offset(1, range.out_first);
    fusion.bias_descriptor = bias->resized(1, range.out_count);
  }
  char* const gradient = arguments.tensors.w;
  SliceSum sum(device_, part.kernel,
               part.accumulator_size > 0 ? scratch + aligned(part.accumulator_at) : nullptr, arguments);
  std::int64_t done = 0;
  for (const Step& step : part.steps) {
    run_step(handle, part, step, done, arguments, scratch);
    done += step.micro_batch;
    sum.add_slice();
  }
  sum.store();
  if (kernel_.pass == Pass::backward_filter && !filter.is_packed())
    copy_out(device_, whole_filter, gradient, filter, arguments.stream);
}

void ChannelDivision::run_step(cudnnHandle_t handle, const Part& part, const Step& step, std::int64_t sample,
                               const Arguments& whole, char* scratch) const {
  Arguments at = whole;
  at.tensors = advanced(kernel_.problem, whole.tensors, sample);
  const ChannelRange range(kernel_, part.first, part.channels, part.of_inputs);
  const auto is_copied = [&](const Pieces& pieces) {
    return !pieces.is_in_place() && !(step.prepared->takes_strides && pieces.is_aligned());
  };
  const auto take = [&](char*& tensor, const Pieces& pieces, char* copy, bool is_output) {
    char* const original = std::exchange(tensor, is_copied(pieces) ? copy : tensor + pieces.offset);
    if (is_copied(pieces) && (!is_output || at.beta != 0))
      copy_in(device_, copy, original, pieces, at.stream);
    return original;
  };
  const GroupCopies& copies = step.copies;
  const Pieces x = x_pieces(kernel_, range, step.micro_batch);
  const Pieces y = y_pieces(kernel_, range, step.micro_batch);
  char* const to_x = take(at.tensors.x, x, scratch + copies.x, kernel_.pass == Pass::backward_data);
  char* const to_y = take(at.tensors.y, y, scratch + copies.y, kernel_.pass == Pass::forward);
  const PreparedKernel& prepared = *step.prepared->kernel;
  prepared.execute(handle, at, {scratch + copies.size, prepared.workspace()});
  if (kernel_.pass == Pass::backward_data && is_copied(x))
    copy_out(device_, to_x, at.tensors.x, x, at.stream);
  if (kernel_.pass == Pass::forward && is_copied(y)) copy_out(device_, to_y, at.tensors.y, y, at.stream);
}

}  // namespace mucudnn
