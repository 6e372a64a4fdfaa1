// A configuration made ready: a convolution divided into parts that run one after another.
#pragma once

#include "cudnn/engine.hpp"

namespace mucudnn {

class PreparedConfiguration {
 public:
  virtual ~PreparedConfiguration() = default;

  // Bytes that run() needs.
  virtual std::size_t workspace() const = 0;

  // The whole mini-batch; any number of threads may run one configuration at once, each with its own handle
  // and workspace. Throws EngineError, in particular where `workspace` is smaller than workspace().
  virtual void run(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace) const = 0;
};

}  // namespace mucudnn
