// A configuration made ready: the slices of a mini-batch, each with its algorithm, run one after another.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cudnn/device.hpp"
#include "cudnn/engine.hpp"

namespace mucudnn {

struct Slice {
  std::int64_t micro_batch = 0;
  std::string algorithm;
};

// Slices of a 16-bit backward_filter that are summed in the output itself. Every slice rounds the output
// once: the error grows by a factor of 1.65 at four slices and of 5.5 at 64.
constexpr std::size_t kMostSlicesInPlace = 4;

// Bytes beyond the algorithms' own workspace for a division into `slices` slices: where a 16-bit
// backward_filter has more than kMostSlicesInPlace, one slice's result in 16 bit and their sum in fp32.
std::size_t accumulator_size(const Problem& problem, Pass pass, std::size_t slices);

class Division {
 public:
  // Throws EngineError where an algorithm cannot run, std::invalid_argument where the slices do not add
  // to the mini-batch.
  Division(Engine& engine, Device& device, const Problem& problem, Pass pass,
           const std::vector<Slice>& slices);

  std::size_t workspace() const { return algorithms_workspace_ + accumulator_size_; }

  // output = alpha * convolution + beta * output, for the whole mini-batch. Throws EngineError, in
  // particular where `workspace` is smaller than workspace().
  void run(const Tensors& tensors, double alpha, double beta, const Scratch& workspace) const;

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
