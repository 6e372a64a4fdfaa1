// The one interface to algorithms: enumerate, prepare, execute. Algorithms go by their names.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "abi/cudnn.h"
#include "core/problem.hpp"

namespace mucudnn {

class EngineError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A call of the library that answered with a status other than success.
class CallFailed : public EngineError {
 public:
  CallFailed(const std::string& call, cudnnStatus_t code, const std::string& status,
             const std::string& reason)
      : EngineError(call + " failed with " + status + (reason.empty() ? "" : ": " + reason)),
        code_(code),
        status_(status) {}
  cudnnStatus_t code() const { return code_; }
  const std::string& status() const { return status_; }  // its name

 private:
  cudnnStatus_t code_;
  std::string status_;
};

// forward reads x, w and writes y; backward_data reads y, w and writes x; backward_filter reads x, y and
// writes w. A slice of the mini-batch is an offset into x and y; w is always whole.
struct Tensors {
  char* x = nullptr;
  char* w = nullptr;
  char* y = nullptr;
  std::array<char*, kMostPointwise> operands{};  // each at the place of its operation in the epilogue
};

struct Scratch {
  char* data = nullptr;
  std::size_t size = 0;
};

// What cudnnConvolutionBiasActivationForward does besides: y = activation(alpha * conv + z_scale * z + bias).
// z is of y's shape and layout.
struct Fusion {
  double z_scale = 0;
  const char* z = nullptr;
  cudnnTensorDescriptor_t bias_descriptor = nullptr;
  const void* bias = nullptr;
  cudnnActivationDescriptor_t activation = nullptr;
};

// output = alpha * convolution + beta * output; a fused forward pass has no beta.
struct Arguments {
  Tensors tensors;
  double alpha = 1;
  double beta = 0;
  std::optional<Fusion> fusion{};
  cudaStream_t stream = nullptr;  // the handle's, for copies between the calls of the library
};

// Whether a library would answer the same at any other time: that it can, or that it cannot, and not that it
// failed.
inline bool is_lasting(cudnnStatus_t status) {
  const int category = status / 1000 * 1000;
  return category == CUDNN_STATUS_SUCCESS || category == CUDNN_STATUS_BAD_PARAM ||
         category == CUDNN_STATUS_NOT_SUPPORTED;
}

// One algorithm of a kernel, as the library describes it.
struct Candidate {
  std::string algorithm;
  std::string status;  // CUDNN_STATUS_SUCCESS, or why it cannot run
  std::size_t workspace = 0;
  std::string notes;       // space-separated: deterministic, tensor_op, fft, winograd
  bool is_lasting = true;  // the status: false where the library may say otherwise another time
};

// What a library has for a kernel.
struct Enumeration {
  std::vector<Candidate> candidates;  // every algorithm of the pass, runnable or not, in a fixed order
  bool is_complete = true;  // false where a call failed for the moment: asked again, there may be more

  void note(cudnnStatus_t status) { is_complete = is_complete && is_lasting(status); }
};

// An algorithm made ready for one problem and pass; to be executed any number of times, on any handle, by any
// number of threads at once.
class PreparedKernel {
 public:
  virtual ~PreparedKernel() = default;
  virtual std::size_t workspace() const = 0;
  // As a candidate has them. Asked as long as the handle is there that it was prepared on; throws CallFailed.
  virtual std::string notes() const = 0;
  // Throws EngineError.
  virtual void execute(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace) const = 0;
};

class Engine {
 public:
  virtual ~Engine() = default;
  // What it asks the library with, and measures on.
  virtual cudnnHandle_t handle() const = 0;
  virtual Enumeration enumerate(const Problem& problem, Pass pass) = 0;
  // Throws EngineError where the algorithm is unknown or cannot run.
  virtual std::unique_ptr<PreparedKernel> prepare(const Problem& problem, Pass pass,
                                                  const std::string& algorithm) = 0;
};

}  // namespace mucudnn
