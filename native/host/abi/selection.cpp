// The choice of an algorithm: by a cost model (Get), or by running them all (Find, FindEx).
#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <vector>

#include "host/abi/execution.hpp"

namespace mucudnn::host {
namespace {

constexpr float kNotTimed = -1;

// Zeroed memory for timing: its pages are mapped already, and zeros never slow arithmetic down.
class Buffer {
 public:
  explicit Buffer(std::size_t size) : data_(::operator new(size, kAlignment)) { std::memset(data_, 0, size); }
  ~Buffer() { ::operator delete(data_, kAlignment); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* data() const { return data_; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  void* data_;
};

struct Workspace {
  void* data;
  std::size_t size;
};

// The common part of the structures in which the functions of each pass report an algorithm.
struct Result {
  int number;
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  float time = kNotTimed;
  std::size_t memory = 0;

  bool can_run() const { return status == CUDNN_STATUS_SUCCESS; }
};

// Returns every algorithm of the pass with its status and its workspace, not timed.
std::vector<Result> list_algorithms(const Kernel& kernel) {
  std::vector<Result> results;
  for (int number = 0; number < algorithm_count(kernel.pass); ++number) {
    Result& result = results.emplace_back(Result{number});
    result.status =
        guarded([&] { result.memory = required_workspace(engine_algorithm(kernel.pass, number), kernel); });
  }
  return results;
}

// Returns every algorithm of the pass, the one with the least estimated cost first.
std::vector<Result> ranked(const Kernel& kernel) {
  const auto cost = [&](const Result& result) {
    return result.can_run() ? estimated_cost(*engine_algorithm(kernel.pass, result.number), kernel)
                            : std::numeric_limits<double>::infinity();
  };
  auto results = list_algorithms(kernel);
  std::stable_sort(results.begin(), results.end(),
                   [&](const Result& a, const Result& b) { return cost(a) < cost(b); });
  return results;
}

// Returns the milliseconds of one run.
float time_once(Algorithm algorithm, const Kernel& kernel, const Tensors& tensors,
                const Workspace& workspace) {
  const auto start = std::chrono::steady_clock::now();
  run(algorithm, kernel, tensors, 1, 0, workspace.data, workspace.size);
  return std::chrono::duration<float, std::milli>(std::chrono::steady_clock::now() - start).count();
}

// Runs each algorithm that can run, once, in the caller's workspace, or each in a fresh workspace if the
// caller brings none.
std::vector<Result> timed(const Kernel& kernel, const Tensors& tensors, const Workspace* workspace) {
  auto results = list_algorithms(kernel);
  for (Result& result : results) {
    if (!result.can_run()) continue;
    result.status = guarded([&] {
      const Algorithm algorithm = *engine_algorithm(kernel.pass, result.number);
      if (workspace == nullptr) {
        const Buffer own(result.memory);
        result.time = time_once(algorithm, kernel, tensors, {own.data(), result.memory});
      } else if (result.memory > 0 && (workspace->data == nullptr || workspace->size < result.memory)) {
        // cuDNN reports this status for such an algorithm, too.
        throw Failure(CUDNN_STATUS_ALLOC_FAILED, "the workspace is too small");
      } else {
        result.time = time_once(algorithm, kernel, tensors, *workspace);
      }
    });
  }
  std::stable_sort(results.begin(), results.end(), [](const Result& a, const Result& b) {
    return a.can_run() != b.can_run() ? a.can_run() : a.time < b.time;
  });
  return results;
}

// Runs each algorithm in memory of its own.
std::vector<Result> timed(const Kernel& kernel) {
  const Problem& problem = kernel.problem;
  const std::size_t item = size_of(problem.data_type);
  const auto batch = static_cast<std::size_t>(problem.mini_batch);
  const Buffer x(item * batch * static_cast<std::size_t>(problem.x_sample()));
  const Buffer w(item * static_cast<std::size_t>(problem.w_elements()));
  const Buffer y(item * batch * static_cast<std::size_t>(problem.y_sample()));
  return timed(kernel, {x.data(), w.data(), y.data()}, nullptr);
}

cudnnStatus_t get_count(cudnnHandle_t handle, Pass pass, int* count) {
  return guarded([&] {
    require("handle, count", {handle, count});
    *count = algorithm_count(pass);
  });
}

// Writes the first of the results that `list` returns.
template <typename Performance, typename List>
cudnnStatus_t write_results(cudnnHandle_t handle, const Descriptors& descriptors, int requested,
                            int* returned, Performance* performances, const List& list) {
  return guarded([&] {
    require("handle, the count returned, results", {handle, returned, performances});
    if (requested < 1) bad_parameter(std::to_string(requested) + " results requested: at least 1");
    const std::vector<Result> results = list();
    // A CPU has no tensor cores, whatever the descriptor allows.
    const auto math = descriptors.convolution->math == CUDNN_FMA_MATH ? CUDNN_FMA_MATH : CUDNN_DEFAULT_MATH;
    *returned = std::min(requested, static_cast<int>(results.size()));
    std::transform(results.begin(), results.begin() + *returned, performances, [&](const Result& result) {
      return Performance{static_cast<decltype(performances->algo)>(result.number),
                         result.status,
                         result.time,
                         result.memory,
                         CUDNN_DETERMINISTIC,
                         math,
                         {}};
    });
  });
}

std::vector<Result> timed_in(const Descriptors& descriptors, const void* first, const void* second,
                             void* output, const Workspace& workspace) {
  Tensors tensors = tensors_of(descriptors.pass, first, second, output);
  const Kernel kernel = kernel_of(descriptors);
  tensors.pitch = pitch_of(kernel.problem, *descriptors.x, *descriptors.y);
  return timed(kernel, tensors, &workspace);
}

}  // namespace
}  // namespace mucudnn::host

using namespace mucudnn::host;

extern "C" {

#define MUCUDNN_DEFINE(Name, Short, First, Second, Output)                                                  \
  cudnnStatus_t cudnnGetConvolution##Name##AlgorithmMaxCount(cudnnHandle_t handle, int* count) {            \
    return get_count(handle, Descriptors(First(), Second(), nullptr, Output()).pass, count);                \
  }                                                                                                         \
                                                                                                            \
  cudnnStatus_t cudnnGetConvolution##Name##Algorithm_v7(                                                    \
      cudnnHandle_t handle, First first, Second second, cudnnConvolutionDescriptor_t convolution,           \
      Output output, int requested, int* returned, cudnnConvolution##Short##AlgoPerf_t* results) {          \
    const Descriptors descriptors(first, second, convolution, output);                                      \
    return write_results(handle, descriptors, requested, returned, results,                                 \
                         [&] { return ranked(kernel_of(descriptors)); });                                   \
  }                                                                                                         \
                                                                                                            \
  cudnnStatus_t cudnnFindConvolution##Name##Algorithm(                                                      \
      cudnnHandle_t handle, First first, Second second, cudnnConvolutionDescriptor_t convolution,           \
      Output output, int requested, int* returned, cudnnConvolution##Short##AlgoPerf_t* results) {          \
    const Descriptors descriptors(first, second, convolution, output);                                      \
    return write_results(handle, descriptors, requested, returned, results,                                 \
                         [&] { return timed(kernel_of(descriptors)); });                                    \
  }                                                                                                         \
                                                                                                            \
  cudnnStatus_t cudnnFindConvolution##Name##AlgorithmEx(                                                    \
      cudnnHandle_t handle, First first_descriptor, const void* first, Second second_descriptor,            \
      const void* second, cudnnConvolutionDescriptor_t convolution, Output output_descriptor, void* output, \
      int requested, int* returned, cudnnConvolution##Short##AlgoPerf_t* results, void* workspace,          \
      size_t workspace_size) {                                                                              \
    const Descriptors descriptors(first_descriptor, second_descriptor, convolution, output_descriptor);     \
    return write_results(handle, descriptors, requested, returned, results, [&] {                           \
      return timed_in(descriptors, first, second, output, {workspace, workspace_size});                     \
    });                                                                                                     \
  }
MUCUDNN_PASSES(MUCUDNN_DEFINE)
#undef MUCUDNN_DEFINE

}  // extern "C"
