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

class Division final : public PreparedConfiguration {
 public:
  // Throws EngineError where an algorithm cannot run, std::invalid_argument where the slices do not add
  // to the mini-batch.
  Division(Engine& engine, Device& device, const Problem& problem, Pass pass,
           const std::vector<Slice>& slices);

  std::size_t workspace() const override { return algorithms_workspace_ + accumulator_size_; }
  void run(const Tensors& tensors, double alpha, double beta, const Scratch& workspace) const override;

 private:
  void run_accumulated(const Tensors& tensors, double alpha, double beta, const Scratch& workspace) const;
  Tensors advanced(const Tensors& tensors, std::int64_t samples) const;

  struct Step {
    std::int64_t micro_batch;
    PreparedKernel* kernel;
  };

  Device& device_;
  Problem problem_;
  Pass pass_;
  std::map<std::pair<std::int64_t, std::string>, std::unique_ptr<PreparedKernel>> kernels_;
  std::vector<Step> steps_;
  std::size_t algorithms_workspace_ = 0;
  std::size_t accumulator_size_ = 0;
};

}  // namespace mucudnn
