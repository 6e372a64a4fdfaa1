// Runs a convolution whose channels are divided into groups (core/channels.hpp), each with its own division
// of the mini-batch.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
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
  struct Prepared {
    std::unique_ptr<PreparedKernel> kernel;
    bool takes_strides = false;
    // The bytes that the algorithm needs for packed tensors, as in plans. Strided tensors need no more.
    std::size_t workspace = 0;
  };
  struct Step {
    std::int64_t micro_batch;
    const Prepared* prepared;
    GroupCopies copies;
  };
  struct Part {
    std::int64_t first;  // the first channel
    std::int64_t channels;
    bool of_inputs;
    Kernel kernel;
    std::vector<Step> steps;
    std::size_t accumulator_at;  // the accumulator's offset in scratch memory
    std::size_t accumulator_size;
  };

  // Prepares an algorithm on the slices where they are, if it takes strides in the workspace that it needs
  // for packed tensors; else on packed copies.
  Prepared prepare(Engine& engine, const Part& part, const Slice& slice) const;
  void run_part(cudnnHandle_t handle, const Part& part, Arguments arguments, char* scratch) const;
  void run_step(cudnnHandle_t handle, const Part& part, const Step& step, std::int64_t sample,
                const Arguments& whole, char* scratch) const;

  Device& device_;
  Kernel kernel_;
  std::map<std::tuple<std::int64_t, std::int64_t, std::string>, Prepared> prepared_;
  std::vector<Part> parts_;
  std::size_t workspace_ = 0;
};

}  // namespace mucudnn
