#include "cudnn/channel_division.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "cudnn/descriptors.hpp"
#include "cudnn/placed_kernel.hpp"

namespace mucudnn {
namespace {

std::size_t bytes_of(std::int64_t elements, DataType type) {
  return static_cast<std::size_t>(elements) * size_of(type);
}

// Prepares an algorithm on a slice of a group: on x and y where they are, if it takes strides in the
// workspace that it needs for packed tensors; else on packed copies.
std::unique_ptr<PreparedKernel> prepare_slice(Engine& engine, Device& device, const Kernel& whole,
                                              const Group& group, const Kernel& slice,
                                              const std::string& algorithm) {
  std::shared_ptr<const PreparedKernel> prepared = engine.prepare(slice, algorithm);
  const std::size_t workspace = prepared->workspace();  // strided tensors need no more
  const std::int64_t samples = slice.problem.mini_batch;
  const ChannelRange range(whole, 0, group.channels, group.of_inputs);
  const Pitch pitch = slice_pitch(whole, range, samples);
  bool takes_strides = false;
  if (pitch.x != 0 || pitch.y != 0) {
    try {
      // An algorithm that needs more workspace for strided tensors than for packed ones works on packed
      // copies. Its notes lack `strided` for the same reason, so that plans count these copies.
      std::shared_ptr<const PreparedKernel> strided = engine.prepare(slice, algorithm, pitch);
      takes_strides = strided->workspace() <= workspace;
      if (takes_strides) prepared = std::move(strided);
    } catch (const EngineError&) {
      // The algorithm takes packed tensors only.
    }
  }
  const auto place = [&](const Pieces& pieces) {
    return Place(pieces, !pieces.is_in_place() && !(takes_strides && pieces.is_aligned()));
  };
  return std::make_unique<PlacedKernel>(device, prepared, whole, place(x_pieces(whole, range, samples)),
                                        place(y_pieces(whole, range, samples)), workspace);
}

// Prepares the division of a group. Throws EngineError.
std::shared_ptr<const Division> prepare(Engine& engine, Device& device, const Kernel& kernel,
                                        const Group& group) {
  const Problem& problem = kernel.problem;
  const auto on_slice = [&](const Kernel& slice, const std::string& algorithm) {
    return prepare_slice(engine, device, kernel, group, slice, algorithm);
  };
  try {
    return std::make_shared<const Division>(device, group_kernel(kernel, group.channels, group.of_inputs),
                                            group.slices, Pitch{problem.in_channels, problem.out_channels},
                                            on_slice);
  } catch (const SliceRefused& refusal) {
    throw EngineError(refusal.what());  // the whole kernel may still have such a slice
  }
}

}  // namespace

ChannelDivision::ChannelDivision(Engine& engine, Device& device, const Kernel& kernel,
                                 const std::vector<Group>& groups)
    : device_(device), kernel_(kernel) {
  std::int64_t first = 0;
  const bool of_inputs = !groups.empty() && groups.front().of_inputs;
  for (const Group& group : in_order(groups, &Group::channels, divided_channels(kernel, of_inputs),
                                     "the groups do not add up to channels: ")) {
    const auto equal = std::find_if(parts_.begin(), parts_.end(), [&](const Part& part) {
      return part.group.channels == group.channels && part.group.slices == group.slices;
    });
    const std::size_t filter_size = GroupCopies(kernel, group.channels, 1, of_inputs).x;
    auto division = equal == parts_.end() ? prepare(engine, device, kernel, group) : equal->division;
    workspace_ = std::max(workspace_, filter_size + division->workspace());
    parts_.push_back({first, group, filter_size, std::move(division)});
    first += group.channels;
  }
}

std::vector<std::string> ChannelDivision::notes() const {
  std::vector<std::string> notes;
  for (const Part& part : parts_) {
    for (std::string& note : part.division->notes()) notes.push_back(std::move(note));
  }
  return notes;
}

void ChannelDivision::run(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace) const {
  require(workspace, "the channel groups need");
  for (const Part& part : parts_) run_part(handle, part, arguments, workspace.data);
}

void ChannelDivision::run_part(cudnnHandle_t handle, const Part& part, Arguments arguments,
                               char* scratch) const {
  const ChannelRange range(kernel_, part.first, part.group.channels, part.group.of_inputs);
  const DataType type = kernel_.problem.data_type;
  const Pieces pieces = filter_pieces(kernel_, range);
  const Place filter(pieces, !pieces.is_packed());
  char* const whole_filter = arguments.tensors.w;
  if (!filter.is_copied) {
    arguments.tensors.w += filter.begin;
  } else {
    if (kernel_.pass != Pass::backward_filter || arguments.beta != 0)
      copy_in(device_, scratch, whole_filter, filter, arguments.stream);
    arguments.tensors.w = scratch;
  }
  arguments.tensors.x += x_pieces(kernel_, range, 1).offset;
  arguments.tensors.y += y_pieces(kernel_, range, 1).offset;
  for (std::size_t i = 0; i < kernel_.problem.epilogue.size(); ++i) {
    if (operand_of(kernel_.problem.epilogue[i].kind) == Operand::channels)
      arguments.tensors.operands[i] += bytes_of(range.out_first, type);
  }
  if (arguments.bias != nullptr) arguments.bias += bytes_of(range.out_first, type);
  std::optional<Owned<cudnnTensorDescriptor_t>> bias;
  if (arguments.fusion) {
    Fusion& fusion = *arguments.fusion;
    const Library& library = *fusion.library;
    bias.emplace(library, library.cudnnCreateTensorDescriptor, library.cudnnDestroyTensorDescriptor);
    int sizes[] = {1, 1, 1, 1, 1}, strides[] = {1, 1, 1, 1, 1};
    sizes[1] = strides[0] = static_cast<int>(range.out_count);
    library.check(
        library.cudnnSetTensorNdDescriptor(*bias, cudnn_type(type), 2 + kernel_.problem.dims, sizes, strides),
        "cudnnSetTensorNdDescriptor");
    fusion.bias = static_cast<const char*>(fusion.bias) + bytes_of(range.out_first, type);
    fusion.bias_descriptor = *bias;
  }
  part.division->run(handle, arguments, {scratch + part.filter_size, part.division->workspace()});
  if (kernel_.pass == Pass::backward_filter && filter.is_copied)
    copy_out(device_, whole_filter, scratch, filter, arguments.stream);
}

}  // namespace mucudnn
