// The one interface to algorithms: enumerate, prepare, execute. Algorithms go by their names.
#pragma once

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/problem.hpp"

namespace mucudnn {

class EngineError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A call of the library that answered with a status other than success.
class CallFailed : public EngineError {
 public:
  CallFailed(const std::string& call, const std::string& status, const std::string& reason)
      : EngineError(call + " failed with " + status + (reason.empty() ? "" : ": " + reason)),
        status_(status) {}
  const std::string& status() const { return status_; }

 private:
  std::string status_;
};

// forward reads x, w and writes y; backward_data reads y, w and writes x; backward_filter reads x, y and
// writes w. A slice of the mini-batch is an offset into x and y; w is always whole.
struct Tensors {
  char* x = nullptr;
  char* w = nullptr;
  char* y = nullptr;
};

struct Scratch {
  char* data = nullptr;
  std::size_t size = 0;
};

// One algorithm of a kernel, as the library describes it.
struct Candidate {
  std::string algorithm;
  std::string status;  // CUDNN_STATUS_SUCCESS, or why it cannot run
  std::size_t workspace = 0;
  std::string notes;  // space-separated: deterministic, tensor_op
};

// An algorithm made ready for one problem and pass; to be executed any number of times.
class PreparedKernel {
 public:
  virtual ~PreparedKernel() = default;
  virtual std::size_t workspace() const = 0;
  // output = alpha * convolution + beta * output. Throws EngineError.
  virtual void execute(const Tensors& tensors, double alpha, double beta, const Scratch& workspace) = 0;
};

class Engine {
 public:
  virtual ~Engine() = default;
  // Every algorithm of the pass, runnable or not, in a fixed order.
  virtual std::vector<Candidate> enumerate(const Problem& problem, Pass pass) = 0;
  // Throws EngineError where the algorithm is unknown or cannot run.
  virtual std::unique_ptr<PreparedKernel> prepare(const Problem& problem, Pass pass,
                                                  const std::string& algorithm) = 0;
};

}  // namespace mucudnn
