// A configuration made ready: a convolution divided into parts that run one after another.
#pragma once

#include "cudnn/engine.hpp"

namespace mucudnn {

class PreparedConfiguration {
 public:
  virtual ~PreparedConfiguration() = default;

  // Bytes that run() needs.
  virtual std::size_t workspace() const = 0;

  // output = alpha * convolution + beta * output, for the whole mini-batch. Throws EngineError, in
  // particular where `workspace` is smaller than workspace().
  virtual void run(const Tensors& tensors, double alpha, double beta, const Scratch& workspace) const = 0;
};

}  // namespace mucudnn
