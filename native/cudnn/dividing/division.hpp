// Division of a kernel into parts that run one after another: slices of the mini-batch, groups of channels,
// or tiles of a sample (tiling.hpp). Divisions nest: a group has slices, and a slice may run in tiles.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/channels.hpp"
#include "core/scratch.hpp"
#include "cudnn/device.hpp"
#include "cudnn/engine.hpp"

namespace mucudnn {

struct Slice {
  std::int64_t micro_batch = 0;
  std::string algorithm;

  bool operator==(const Slice& other) const {
    return micro_batch == other.micro_batch && algorithm == other.algorithm;
  }
};

// Some of the channels that groups divide (core/channels.hpp), with a division of their mini-batch.
struct Group {
  std::int64_t channels = 0;
  std::vector<Slice> slices;
  bool of_inputs = false;
};

// Thrown if a slice cannot be prepared.
class SliceRefused : public EngineError {
 public:
  SliceRefused(Slice slice, const std::string& reason) : EngineError(reason), slice_(std::move(slice)) {}
  const Slice& slice() const { return slice_; }

 private:
  Slice slice_;
};

// Returns the addresses of the tensors from sample `first` on.
Tensors advanced(const Problem& problem, const Tensors& tensors, std::int64_t first);

// Returns the arguments for the samples from `first` on, after those before it are computed.
Arguments advanced(const Kernel& kernel, const Arguments& arguments, std::int64_t first);

// The copy of a part in packed memory, for an algorithm that cannot compute on it in the caller's tensor. Its
// members are bytes of each plane of the part.
struct Copy {
  std::size_t size() const { return aligned(planes * width); }

  std::size_t planes, pitch;  // the pitch is that of the caller's tensor
  std::size_t width;
  std::size_t from, to;     // the range inside the caller's tensor; the rest is padding, filled with zeros
  std::size_t first, last;  // the range of an output that the part computes
};

// The place of a part in a tensor of the caller.
struct Place {
  std::int64_t begin = 0;              // the byte at which the part begins; below 0 in the padding
  std::shared_ptr<const Copy> copy{};  // null if the algorithm computes on the caller's tensor

  std::size_t copy_size() const { return copy == nullptr ? 0 : copy->size(); }
};

// A kernel whose parts run one after another, each at its place in the caller's tensors. The workspace is the
// most that a part needs, for its copies and its algorithm. Groups of channels cannot be resumed: their
// progress means nothing.
class DividedKernel : public PreparedKernel {
 public:
  std::size_t workspace() const override { return workspace_; }
  std::vector<std::string> notes() const override;
  std::size_t kept_filter_size() const override { return kept_filter_size_; }
  void keep_filter(const char* w, char* kept) const override;
  void execute(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace) const override;
  void resume(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace,
              Progress& done) const override;

 protected:
  struct Part {
    std::shared_ptr<const PreparedKernel> prepared;
    Place x{}, w{}, y{};
    std::size_t workspace = 0;                     // at least, because plans count what packed tensors need
    std::int64_t samples = 0;                      // that the part completes
    std::int64_t channels = 0, first_channel = 0;  // the output channels of a group
    std::size_t kept_filter_at = 0;

    std::size_t copies_size(const Kernel& kernel) const;
  };

  // With `adds`, each part but the first adds to the output. If `tile_steps` is not 0, the parts are tiles of
  // that many steps.
  DividedKernel(Device& device, const Kernel& kernel, bool adds, std::int64_t tile_steps = 0)
      : device_(device), kernel_(kernel), adds_(adds), tile_steps_(tile_steps) {}

  // Adds a part that runs after those before it. The parts with the same `keeper` share the filter that it
  // keeps; null if the parts keep none.
  void add(Part part, const PreparedKernel* keeper);
  const Kernel& kernel() const { return kernel_; }
  const std::vector<Part>& parts() const { return parts_; }

 private:
  void run(const Part& part, cudnnHandle_t handle, const Arguments& arguments, const Scratch& scratch,
           Progress& done) const;

  Device& device_;
  Kernel kernel_;
  bool adds_;
  std::int64_t tile_steps_;
  std::vector<Part> parts_;
  std::map<const PreparedKernel*, std::size_t> kept_filters_;  // their offsets, by the kernel that keeps them
  std::size_t workspace_ = 0, kept_filter_size_ = 0;
};

// Slices of the mini-batch, each with its algorithm.
class Division final : public DividedKernel {
 public:
  // Throws SliceRefused for a slice that cannot be prepared, EngineError if there are more than
  // most_slices(), and std::invalid_argument if they do not add up to the mini-batch.
  Division(const Engine& engine, Device& device, const Kernel& kernel, const std::vector<Slice>& slices);
  // Divides a group of the channels of `whole`. The tensors begin with the group's first channel.
  Division(const Engine& engine, Device& device, const Kernel& whole, const Group& group);

  // The slice whose algorithm needs the most workspace.
  const Slice& slice_with_most_workspace() const { return slice_with_most_workspace_; }

 private:
  static Part prepare(const Engine& engine, const Kernel& whole, const ChannelRange& range,
                      const Kernel& slice, const std::string& algorithm);

  Slice slice_with_most_workspace_;
};

// Groups of channels. Its workspace is the most that a group needs, for the copy of its filter and its
// slices.
class ChannelDivision final : public DividedKernel {
 public:
  // Throws EngineError if a slice cannot be prepared or slices are too many, and std::invalid_argument if
  // the groups do not add up to the channels, or slices not to the mini-batch.
  ChannelDivision(const Engine& engine, Device& device, const Kernel& kernel,
                  const std::vector<Group>& groups);
};

}  // namespace mucudnn
