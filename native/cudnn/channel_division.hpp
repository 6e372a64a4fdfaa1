// Runs a convolution whose channels are divided into groups (core/channels.hpp), each with its own division
// of the mini-batch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/channels.hpp"
#include "cudnn/division.hpp"

namespace mucudnn {

struct Group {
  std::int64_t channels = 0;
  std::vector<Slice> slices;
  bool of_inputs = false;
};

class ChannelDivision final : public PreparedConfiguration {
 public:
  // Throws EngineError if a slice cannot be prepared or slices cannot be summed, and std::invalid_argument if
  // the groups do not add up to the channels, or slices not to the mini-batch.
  ChannelDivision(Engine& engine, Device& device, const Kernel& kernel, const std::vector<Group>& groups);

  // The most that a group needs, for its copies, its algorithms and its accumulator.
  std::size_t workspace() const override { return workspace_; }
  // The notes of each algorithm, as in Candidate::notes.
  std::vector<std::string> notes() const;
  void run(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace) const override;

 private:
  struct Part {
    std::int64_t first;  // the first channel
    Group group;
    std::size_t filter_size;  // bytes of the copy of its filter, which precedes the workspace
    std::shared_ptr<const Division> division;  // equal groups share one
  };

  void run_part(cudnnHandle_t handle, const Part& part, Arguments arguments, char* scratch) const;

  Device& device_;
  Kernel kernel_;
  std::vector<Part> parts_;
  std::size_t workspace_ = 0;
};

}  // namespace mucudnn
