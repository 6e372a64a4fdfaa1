#include "cudnn/dividing/division.hpp"

#include <optional>
#include <stdexcept>

#include "core/accumulation.hpp"
#include "core/tiles.hpp"
#include "cudnn/descriptors.hpp"

namespace mucudnn {
namespace {

std::int64_t bytes_of(std::int64_t elements, DataType type) {
  return elements * static_cast<std::int64_t>(size_of(type));
}

std::int64_t x_step(const Problem& p) { return bytes_of(p.x_sample(), p.data_type); }
std::int64_t y_step(const Problem& p) { return bytes_of(p.y_sample(), p.type_of_y()); }

// Returns the parts in an order in which each begins at a multiple of the greatest power of two in its size,
// so that its tensors have the alignment that its algorithm was planned for. Throws std::invalid_argument,
// with the text `refusal` and the size of the whole, unless the sizes are positive and add up to the whole.
template <typename Part>
std::vector<Part> in_order(std::vector<Part> parts, std::int64_t Part::* size, std::int64_t whole,
                           const std::string& refusal) {
  std::int64_t left = whole;
  for (const Part& part : parts) left = part.*size < 1 || part.*size > left ? -1 : left - part.*size;
  if (left != 0) throw std::invalid_argument(refusal + std::to_string(whole));
  const auto power = [&](const Part& part) { return part.*size & -(part.*size); };
  std::stable_sort(parts.begin(), parts.end(),
                   [&](const Part& a, const Part& b) { return power(a) > power(b); });
  return parts;
}

Place place_of(const Pieces& pieces, bool is_copied) {
  Place place{static_cast<std::int64_t>(pieces.offset)};
  if (is_copied) {
    place.copy = std::make_shared<const Copy>(
        Copy{pieces.count, pieces.pitch, pieces.width, 0, pieces.width, 0, pieces.width});
  }
  return place;
}

// Both copies work in stream order.
void copy_in(Device& device, char* to, const char* tensor, const Place& place, cudaStream_t stream) {
  const Copy& copy = *place.copy;
  if (copy.from > 0) device.clear_pieces(to, copy.width, copy.from, copy.planes, stream);
  if (copy.to > copy.from) {
    device.copy_pieces(to + copy.from, copy.width, tensor + place.begin + copy.from, copy.pitch,
                       copy.to - copy.from, copy.planes, stream);
  }
  if (copy.to < copy.width)
    device.clear_pieces(to + copy.to, copy.width, copy.width - copy.to, copy.planes, stream);
}

void copy_out(Device& device, char* tensor, const char* from, const Place& place, cudaStream_t stream) {
  const Copy& copy = *place.copy;
  device.copy_pieces(tensor + place.begin + copy.first, copy.pitch, from + copy.first, copy.width,
                     copy.last - copy.first, copy.planes, stream);
}

// The legacy API's descriptor of the bias of some channels.
class BiasDescriptor {
 public:
  BiasDescriptor(const Library& library, const Problem& p, std::int64_t channels)
      : descriptor_(library, library.cudnnCreateTensorDescriptor, library.cudnnDestroyTensorDescriptor) {
    int sizes[] = {1, 1, 1, 1, 1}, strides[] = {1, 1, 1, 1, 1};
    sizes[1] = strides[0] = static_cast<int>(channels);
    library.check(
        library.cudnnSetTensorNdDescriptor(descriptor_, cudnn_type(p.data_type), 2 + p.dims, sizes, strides),
        "cudnnSetTensorNdDescriptor");
  }
  operator cudnnTensorDescriptor_t() const { return descriptor_; }

 private:
  Owned<cudnnTensorDescriptor_t> descriptor_;
};

// Returns whether an operation of the epilogue reads a tensor of y's shape.
bool reads_like_y(const Pointwise& operation) {
  return operand_of(operation.kind) == Operand::like_y && operation.factor != 0;
}

}  // namespace

Tensors advanced(const Problem& problem, const Tensors& tensors, std::int64_t first) {
  Tensors at = tensors;
  at.x += first * x_step(problem);
  at.y += first * y_step(problem);
  for (std::size_t i = 0; i < problem.epilogue.size(); ++i) {
    if (operand_of(problem.epilogue[i].kind) == Operand::like_y) at.operands[i] += first * y_step(problem);
  }
  return at;
}

Arguments advanced(const Kernel& kernel, const Arguments& arguments, std::int64_t first) {
  Arguments at = arguments;
  at.tensors = advanced(kernel.problem, arguments.tensors, first);
  if (at.fusion) at.fusion->z += first * y_step(kernel.problem);
  if (adds_slices(kernel.pass) && first > 0) at.beta = 1;
  return at;
}

std::size_t DividedKernel::Part::copies_size(const Kernel& kernel) const {
  const Epilogue& epilogue = kernel.problem.epilogue;
  const auto like_y = static_cast<std::size_t>(std::count_if(epilogue.begin(), epilogue.end(), reads_like_y));
  return x.copy_size() + w.copy_size() + (1 + like_y) * y.copy_size();
}

void DividedKernel::add(Part part, const PreparedKernel* keeper) {
  if (keeper != nullptr) {
    const auto [kept, is_new] = kept_filters_.try_emplace(keeper, kept_filter_size_);
    if (is_new) kept_filter_size_ += aligned(keeper->kept_filter_size());
    part.kept_filter_at = kept->second;
  }
  const std::size_t workspace = std::max(part.workspace, part.prepared->workspace());
  workspace_ = std::max(workspace_, part.copies_size(kernel_) + workspace);
  parts_.push_back(std::move(part));
}

std::vector<std::string> DividedKernel::notes() const {
  std::map<const PreparedKernel*, std::vector<std::string>> each;
  for (const Part& part : parts_) {
    if (const auto [its, is_new] = each.try_emplace(part.prepared.get()); is_new)
      its->second = part.prepared->notes();
  }
  std::vector<std::string> all;
  for (auto& [prepared, notes] : each) all.insert(all.end(), notes.begin(), notes.end());
  return all;
}

void DividedKernel::keep_filter(const char* w, char* kept) const {
  for (const auto& [keeper, at] : kept_filters_) keeper->keep_filter(w, kept + at);
}

void DividedKernel::execute(cudnnHandle_t handle, const Arguments& arguments,
                            const Scratch& workspace) const {
  Progress done;
  resume(handle, arguments, workspace, done);
}

void DividedKernel::resume(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace,
                           Progress& done) const {
  if (workspace.size < this->workspace()) {
    throw EngineError("the division needs a workspace of " + std::to_string(this->workspace()) + " bytes, " +
                      std::to_string(workspace.size) + " are given");
  }
  for (auto i = static_cast<std::size_t>(tile_steps_ > 0 ? done.tiles : 0); i < parts_.size(); ++i) {
    Arguments part = arguments;
    if (adds_ && i > 0) part.beta = 1;
    run(parts_[i], handle, part, workspace, done);
    done = tile_steps_ > 0 ? Progress{done.samples, static_cast<std::int64_t>(i) + 1, tile_steps_}
                           : Progress{done.samples + parts_[i].samples, 0, 0};
  }
}

void DividedKernel::run(const Part& part, cudnnHandle_t handle, const Arguments& arguments,
                        const Scratch& scratch, Progress& done) const {
  struct Placed {
    char* Tensors::* tensor;
    const Place& place;
    bool is_output;
  };
  const Placed all[] = {{&Tensors::x, part.x, kernel_.pass == Pass::backward_data},
                        {&Tensors::w, part.w, kernel_.pass == Pass::backward_filter},
                        {&Tensors::y, part.y, kernel_.pass == Pass::forward}};
  const Problem& problem = kernel_.problem;
  Arguments at = arguments;
  at.kept_filter = arguments.kept_filter == nullptr || part.prepared->kept_filter_size() == 0
                       ? nullptr
                       : arguments.kept_filter + part.kept_filter_at;
  char* next = scratch.data;
  const auto take = [&](char*& tensor, const Place& place, bool reads) {
    if (place.copy == nullptr) {
      tensor += place.begin;
      return;
    }
    if (reads) copy_in(device_, next, tensor, place, arguments.stream);
    tensor = std::exchange(next, next + place.copy_size());
  };
  for (const auto& [tensor, place, is_output] : all)
    take(at.tensors.*tensor, place, !is_output || arguments.beta != 0);
  for (std::size_t i = 0; i < problem.epilogue.size(); ++i) {
    if (operand_of(problem.epilogue[i].kind) == Operand::channels)
      at.tensors.operands[i] += bytes_of(part.first_channel, problem.data_type);
    // A tensor that is not read stays where it is: the program may pass y itself.
    if (reads_like_y(problem.epilogue[i])) take(at.tensors.operands[i], part.y, true);
  }
  if (at.bias != nullptr) at.bias += bytes_of(part.first_channel, problem.data_type);
  std::optional<BiasDescriptor> bias;
  if (at.fusion) {
    Fusion& fusion = *at.fusion;
    if (part.y.copy == nullptr) {
      fusion.z += part.y.begin;
    } else {
      // The legacy API's z may be y itself.
      if (fusion.z_scale != 0) copy_in(device_, at.tensors.y, fusion.z, part.y, arguments.stream);
      fusion.z = at.tensors.y;
    }
    fusion.bias = static_cast<const char*>(fusion.bias) + bytes_of(part.first_channel, problem.data_type);
    if (part.channels > 0) fusion.bias_descriptor = bias.emplace(*fusion.library, problem, part.channels);
  }
  const auto copied = static_cast<std::size_t>(next - scratch.data);
  part.prepared->resume(handle, at, {next, scratch.size - copied}, done);
  for (const auto& [tensor, place, is_output] : all) {
    if (is_output && place.copy != nullptr)
      copy_out(device_, arguments.tensors.*tensor, at.tensors.*tensor, place, arguments.stream);
  }
}

Division::Division(const Engine& engine, Device& device, const Kernel& kernel,
                   const std::vector<Slice>& slices)
    : Division(engine, device, kernel, Group{divided_channels(kernel), slices}) {}

Division::Division(const Engine& engine, Device& device, const Kernel& whole, const Group& group)
    : DividedKernel(device, group_kernel(whole, group.channels, group.of_inputs), adds_slices(whole.pass)) {
  const Problem& problem = whole.problem;
  const ChannelRange range(whole, 0, group.channels, group.of_inputs);
  std::map<std::pair<std::int64_t, std::string>, Part> prepared;
  std::int64_t first = 0;
  std::size_t most = 0;
  for (const Slice& slice : in_order(group.slices, &Slice::micro_batch, problem.mini_batch,
                                     "the micro-batches do not add up to the mini-batch of ")) {
    // Tiles divide one sample.
    const std::int64_t samples = is_tiled(slice.algorithm) ? 1 : slice.micro_batch;
    Part& part = prepared[{samples, slice.algorithm}];
    if (part.prepared == nullptr) {
      try {
        part = prepare(engine, whole, range, kernel().with_mini_batch(samples), slice.algorithm);
      } catch (const EngineError& error) {
        throw SliceRefused(slice, error.what());
      }
    }
    if (parts().empty() || part.prepared->workspace() > most) slice_with_most_workspace_ = slice;
    most = std::max(most, part.prepared->workspace());
    for (const std::int64_t end = first + slice.micro_batch; first < end; first += samples) {
      Part placed = part;
      placed.x.begin += first * x_step(problem);
      placed.y.begin += first * y_step(problem);
      add(std::move(placed), part.prepared.get());
    }
  }
  if (const std::string refusal = refusal_of_slices(kernel(), parts().size()); !refusal.empty())
    throw EngineError(refusal);
}

// Prepares an algorithm on a slice: on x and y where they are, if it takes strides in the workspace that it
// needs for packed tensors; else on packed copies.
DividedKernel::Part Division::prepare(const Engine& engine, const Kernel& whole, const ChannelRange& range,
                                      const Kernel& slice, const std::string& algorithm) {
  const std::int64_t samples = slice.problem.mini_batch;
  Part part{engine.prepare(slice, algorithm)};
  part.workspace = part.prepared->workspace();
  part.samples = samples;
  const Pitch pitch = slice_pitch(whole, range, samples);
  bool takes_strides = false;
  if (pitch.x != 0 || pitch.y != 0) {
    try {
      // An algorithm that needs more workspace for strided tensors than for packed ones works on packed
      // copies. Its notes lack `strided` for the same reason, so that plans count these copies.
      std::shared_ptr<const PreparedKernel> strided = engine.prepare(slice, algorithm, pitch);
      takes_strides = strided->workspace() <= part.prepared->workspace();
      if (takes_strides) part.prepared = std::move(strided);
    } catch (const EngineError&) {
      // The algorithm takes packed tensors only.
    }
  }
  const auto place = [&](const Pieces& pieces) {
    return place_of(pieces, !pieces.is_in_place() && !(takes_strides && pieces.is_aligned()));
  };
  part.x = place(x_pieces(whole, range, samples));
  part.y = place(y_pieces(whole, range, samples));
  return part;
}

ChannelDivision::ChannelDivision(const Engine& engine, Device& device, const Kernel& kernel,
                                 const std::vector<Group>& groups)
    : DividedKernel(device, kernel, false) {
  const bool of_inputs = !groups.empty() && groups.front().of_inputs;
  const std::vector<Group> ordered = in_order(groups, &Group::channels, divided_channels(kernel, of_inputs),
                                              "the groups do not add up to channels: ");
  std::int64_t first = 0;
  for (const Group& group : ordered) {
    const ChannelRange range(kernel, first, group.channels, of_inputs);
    const Pieces filter = filter_pieces(kernel, range);
    const auto equal = std::find_if(ordered.begin(), ordered.end(), [&](const Group& other) {
      return other.channels == group.channels && other.slices == group.slices;
    });
    const auto index = static_cast<std::size_t>(equal - ordered.begin());
    Part part;
    try {
      part.prepared = index < parts().size()
                          ? parts()[index].prepared
                          : std::make_shared<const Division>(engine, device, kernel, group);
    } catch (const SliceRefused& refusal) {
      throw EngineError(refusal.what());  // the whole kernel may still have such a slice
    }
    part.x.begin = static_cast<std::int64_t>(x_pieces(kernel, range, 1).offset);
    part.y.begin = static_cast<std::int64_t>(y_pieces(kernel, range, 1).offset);
    part.w = place_of(filter, !filter.is_packed());
    part.channels = range.out_count;
    part.first_channel = range.out_first;
    add(std::move(part), nullptr);
    first += group.channels;
  }
}

}  // namespace mucudnn
