// Division of the mini-batch: slices, each with its algorithm.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cudnn/configuration.hpp"
#include "cudnn/device.hpp"
#include "cudnn/filter_sum.hpp"

namespace mucudnn {

struct Slice {
  std::int64_t micro_batch = 0;
  std::string algorithm;
};

// A slice that cannot be prepared.
class SliceRefused : public EngineError {
 public:
  SliceRefused(Slice slice, const std::string& reason) : EngineError(reason), slice_(std::move(slice)) {}
  const Slice& slice() const { return slice_; }

 private:
  Slice slice_;
};

// The tensors from sample `first` on.
Tensors advanced(const Problem& problem, const Tensors& tensors, std::int64_t first);

// The operands of the samples from `first` on, where those before it are computed: the slices of forward and
// backward_data write disjoint outputs, those of backward_filter add to one.
Arguments advanced(const Problem& problem, Pass pass, const Arguments& arguments, std::int64_t first);

class Division final : public PreparedConfiguration {
 public:
  // Throws SliceRefused, EngineError where its slices cannot be summed, and std::invalid_argument where
  // they do not add to the mini-batch.
  Division(Engine& engine, Device& device, const Problem& problem, Pass pass,
           const std::vector<Slice>& slices);

  std::size_t workspace() const override { return algorithms_workspace_ + accumulator_size_; }
  // Which needs the most of it.
  const Slice& hungriest() const { return hungriest_; }
  // Of each algorithm, as PreparedKernel has them.
  std::vector<std::string> notes() const;
  void run(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace) const override;
  // Where this throws, the output is that of the first `done` samples.
  void run(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace,
           std::int64_t& done) const;

 private:
  void run_accumulated(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace) const;

  struct Step {
    std::int64_t micro_batch;
    const PreparedKernel* kernel;
  };

  Device& device_;
  Problem problem_;
  Pass pass_;
  std::map<std::pair<std::int64_t, std::string>, std::unique_ptr<PreparedKernel>> kernels_;
  std::vector<Step> steps_;
  std::size_t algorithms_workspace_ = 0;
  Slice hungriest_;
  std::size_t accumulator_size_ = 0;
};

}  // namespace mucudnn
