// A configuration made ready: a convolution divided into parts that run one after another.
#pragma once

#include "cudnn/engine.hpp"

namespace mucudnn {

class PreparedConfiguration {
 public:
  virtual ~PreparedConfiguration() = default;

  // Bytes of workspace that run() needs.
  virtual std::size_t workspace() const = 0;

  // These two functions are like those of PreparedKernel, for the algorithms of all parts.
  virtual std::size_t kept_filter_size() const { return 0; }
  virtual void keep_filter(const char* /*w*/, char* /*kept*/) const {}

  // Computes the whole mini-batch. Any number of threads may run one configuration at once, each with its own
  // handle and workspace. Throws EngineError, for example if `workspace` is smaller than workspace().
  virtual void run(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace) const = 0;

 protected:
  // Throws EngineError if `scratch` is smaller than workspace(). The message begins with `need`.
  void require(const Scratch& scratch, const std::string& need) const {
    if (scratch.size >= workspace()) return;
    throw EngineError(need + " a workspace of " + std::to_string(workspace()) + " bytes, " +
                      std::to_string(scratch.size) + " are given");
  }
};

}  // namespace mucudnn
