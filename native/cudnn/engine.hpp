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
// Returns the pitch for which the library is asked: that of tensors with twice the kernel's channels.
inline Pitch pitch_of_halves(const Problem& p) { return {2 * p.in_channels, 2 * p.out_channels}; }

// One algorithm of a kernel, as the library describes it.
struct Candidate {
  std::string algorithm;
  std::string status;  // CUDNN_STATUS_SUCCESS, or the reason why it cannot run
  std::size_t workspace = 0;
  std::string notes;       // space-separated: deterministic, tensor_op, fft, winograd, strided
  bool is_lasting = true;  // false if a later call may return another status

  void add_note(const char* note) { notes.append(notes.empty() ? "" : " ").append(note); }
};

// The algorithms that a library has for a kernel.
struct Enumeration {
  std::vector<Candidate> candidates;  // every algorithm of the pass, runnable or not, in a fixed order
  bool is_complete = true;  // false if a call failed temporarily, so that a later call may find more

  void note(cudnnStatus_t status) { is_complete = is_complete && is_lasting(status); }
};

// An algorithm prepared for one kernel. Any number of threads may execute it at once, any number of
// times, each on its own handle.
class PreparedKernel {
 public:
  virtual ~PreparedKernel() = default;
  virtual std::size_t workspace() const = 0;
  // The notes, as in Candidate::notes. The handle that the kernel was prepared on must still exist. Throws
  // CallFailed.
  virtual std::string notes() const = 0;
  // Returns the bytes of a kept filter: a filter in the form that the algorithm computes with, made once for
  // many executions. It is 0 if that is the tensor's own form.
  virtual std::size_t kept_filter_size() const { return 0; }
  // Writes the filter `w` in that form. `kept` must be aligned to kAlignment. Throws EngineError.
  virtual void keep_filter(const char* /*w*/, char* /*kept*/) const {}
  // Returns the kept filter in memory that several kernels share, where it begins at `offset`; null if there
  // is none.
  const char* kept_in(const char* shared, std::size_t offset) const {
    return shared == nullptr || kept_filter_size() == 0 ? nullptr : shared + offset;
  }
  // The bits are the same with and without a kept filter. Throws EngineError.
  virtual void execute(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace) const = 0;
  // Executes like the function above, but leaves out the tiles of the first sample that are `done` already.
  // If it throws, the output holds the result of `done` alone.
  virtual void resume(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace,
                      Progress& /*done*/) const {
    execute(handle, arguments, workspace);
  }
};

class Engine {
 public:
  virtual ~Engine() = default;
  // The handle that enumerate(), prepare() and measurements use.
  virtual cudnnHandle_t handle() const = 0;
  // Returns whether the engine is for filters that stay the same, so that runs with kept filters are
  // measured.
  virtual bool has_constant_filters() const { return false; }
  virtual Enumeration enumerate(const Kernel& kernel) = 0;
  // Throws EngineError if the algorithm is unknown or cannot run on tensors of this pitch.
  virtual std::unique_ptr<PreparedKernel> prepare(const Kernel& kernel, const std::string& algorithm,
                                                  const Pitch& pitch = {}) = 0;
};

}  // namespace mucudnn
