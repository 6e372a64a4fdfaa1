// The one interface to algorithms: enumerate, prepare, execute. Callers name algorithms by text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "abi/cudnn.h"
#include "core/kernel.hpp"
#include "core/tensors.hpp"

namespace mucudnn {

class Context;
class Device;
class Library;

class EngineError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Thrown if a call to the library returns a status other than success.
class CallFailed : public EngineError {
 public:
  CallFailed(const std::string& call, cudnnStatus_t code, const std::string& status,
             const std::string& reason)
      : EngineError(call + " failed with " + status + (reason.empty() ? "" : ": " + reason)),
        code_(code),
        status_(status) {}
  cudnnStatus_t code() const { return code_; }
  const std::string& status() const { return status_; }  // the name of the code

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
  std::array<char*, kMostPointwise> operands{};  // each at the index of its operation in the epilogue
};

struct Scratch {
  char* data = nullptr;
  std::size_t size = 0;

  std::size_t usable() const { return data == nullptr ? 0 : size; }
};

// The extra inputs of cudnnConvolutionBiasActivationForward: y = activation(alpha * conv + z_scale * z +
// bias). z has y's shape and layout.
struct Fusion {
  double z_scale = 0;
  const char* z = nullptr;
  cudnnTensorDescriptor_t bias_descriptor = nullptr;
  const void* bias = nullptr;
  cudnnActivationDescriptor_t activation = nullptr;
  const Library* library = nullptr;  // makes the descriptor for the bias of a group of channels
};

// output = alpha * convolution + beta * output; a fused forward pass has no beta.
struct Arguments {
  Tensors tensors;
  double alpha = 1;
  double beta = 0;
  std::optional<Fusion> fusion{};
  cudaStream_t stream = nullptr;      // the handle's stream, for copies between the library's calls
  const char* kept_filter = nullptr;  // the kept filter of tensors.w; null if there is none
  // A value for each channel of y, which the host engine adds in the forward pass with beta 0; null if there
  // is none. No other library takes one.
  const char* bias = nullptr;
};

// The part of a call that is complete: some samples, and tiles of the sample that follows them.
struct Progress {
  std::int64_t samples = 0;
  std::int64_t tiles = 0;
  std::int64_t tile_steps = 0;  // the steps of each of these tiles
};

// Returns whether the library would give the same status at any other time: it can run the problem, or it can
// never run it. A temporary failure, such as a lack of memory, is not lasting.
inline bool is_lasting(cudnnStatus_t status) {
  const int category = status / 1000 * 1000;
  return category == CUDNN_STATUS_SUCCESS || category == CUDNN_STATUS_BAD_PARAM ||
         category == CUDNN_STATUS_NOT_SUPPORTED;
}

// The status of an algorithm whose arithmetic the problem's math forbids. Such algorithms use tensor cores
// for f32 without tf32, tensor cores for 16-bit types under fma, transforms under strict, or inputs or sums
// of lower precision.
constexpr char kNotAllowed[] = "MUCUDNN_STATUS_NOT_ALLOWED";

// Returns whether an algorithm is FFT or Winograd, which mix the elements of a tile. Legacy algorithms show
// it in their names, engines of the graph API in their notes.
inline bool is_transform(const std::string& algorithm, const std::string& notes) {
  const auto has = [](const std::string& text, const char* word) {
    return text.find(word) != std::string::npos;
  };
  return has(algorithm, "FFT") || has(algorithm, "WINOGRAD") || has(notes, "fft") || has(notes, "winograd");
}

// A note: the algorithm takes x and y that are some channels of larger tensors, in the same workspace.
constexpr const char* kStrided = "strided";

// One algorithm of a kernel, as the library describes it.
struct Candidate {
  std::string algorithm;
  std::string status;  // CUDNN_STATUS_SUCCESS, or the reason why it cannot run
  std::size_t workspace = 0;
  std::string notes;       // space-separated: deterministic, tensor_op, fft, winograd, strided
  bool is_lasting = true;  // false if a later call may return another status

  bool is_runnable() const { return status == "CUDNN_STATUS_SUCCESS"; }
};

// The algorithms that a library has for a kernel.
struct Enumeration {
  std::vector<Candidate> candidates;  // every algorithm of the pass, runnable or not, in a fixed order
  bool is_complete = true;  // false if a call failed temporarily, so that a later call may find more

  void note(cudnnStatus_t status) { is_complete = is_complete && is_lasting(status); }
};

// An algorithm prepared for one kernel, or several that compute its parts. Any number of threads may execute
// it at once, any number of times, each on its own handle.
class PreparedKernel {
 public:
  virtual ~PreparedKernel() = default;
  virtual std::size_t workspace() const = 0;
  // The notes of each algorithm, as in Candidate::notes. The handle that the kernel was prepared on must
  // still exist. Throws CallFailed.
  virtual std::vector<std::string> notes() const = 0;
  // Returns the bytes of a kept filter: a filter in the form that the algorithm computes with, made once for
  // many executions. It is 0 if that is the tensor's own form.
  virtual std::size_t kept_filter_size() const { return 0; }
  // Writes the filter `w` in that form. `kept` must be aligned to kAlignment. Throws EngineError.
  virtual void keep_filter(const char* /*w*/, char* /*kept*/) const {}
  // The bits are the same with and without a kept filter. Throws EngineError, for example if the workspace is
  // too small.
  virtual void execute(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace) const = 0;
  // Executes like the function above, but leaves out the tiles of the first sample that are `done` already.
  // If it throws, the output holds the result of `done` alone.
  virtual void resume(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace,
                      Progress& /*done*/) const {
    execute(handle, arguments, workspace);
  }
};

// The algorithms of a library on a device: those of its legacy API, its engines of the graph API, and these
// algorithms in tiles (tiling.hpp).
class Engine {
 public:
  // A library whose graph API offers its legacy algorithms again, such as the host engine, lists its engines
  // of the graph API only for the fused and mixed problems that the legacy API lacks. A context without a
  // handle has engines of the graph API alone. If the caller owns the handle, kernels may outlive it. The
  // device must outlive the engine and its prepared kernels.
  enum class GraphEngines { for_all, for_fused_and_mixed };
  Engine(std::shared_ptr<const Context> context, Device& device, GraphEngines graph_engines,
         bool has_constant_filters = false);

  // The handle that enumerate(), prepare() and measurements use.
  cudnnHandle_t handle() const;
  // Returns whether the engine is for filters that stay the same, so that runs with kept filters are
  // measured.
  bool has_constant_filters() const { return has_constant_filters_; }
  Enumeration enumerate(const Kernel& kernel) const;
  // Returns the algorithms that are not in tiles, without the note kStrided.
  Enumeration enumerate_whole(const Kernel& kernel) const;
  // Throws EngineError if the algorithm is unknown or cannot run on tensors of this pitch.
  std::unique_ptr<PreparedKernel> prepare(const Kernel& kernel, const std::string& algorithm,
                                          const Pitch& pitch = {}) const;

 private:
  bool has_graph_engines(const Problem& problem) const;

  std::shared_ptr<const Context> context_;
  Device& device_;
  GraphEngines graph_engines_;
  bool has_constant_filters_;
};

}  // namespace mucudnn
