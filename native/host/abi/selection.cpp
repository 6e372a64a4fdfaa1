// The choice of an algorithm: by a cost model (Get), or by running them all (Find, FindEx).
#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <vector>

#include "host/abi/cost.hpp"
#include "host/abi/execution.hpp"

namespace mucudnn::host {
namespace {

constexpr float kNotTimed = -1;

// Zeroed memory for timing. Its pages are mapped before, and its zeros never slow arithmetic down.
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

template <Pass pass>
double estimated_cost(const typename Legacy<pass>::Performance& result, const Kernel& kernel) {
  if (result.status != CUDNN_STATUS_SUCCESS) return std::numeric_limits<double>::infinity();
  return estimated_cost(*engine_algorithm<pass>(result.algo), kernel);
}

// Returns every algorithm of the pass with its status and its workspace, not timed.
template <Pass pass>
std::vector<typename Legacy<pass>::Performance> survey(const Kernel& kernel, cudnnMathType_t math) {
  std::vector<typename Legacy<pass>::Performance> results(Legacy<pass>::kCount);
  for (int i = 0; i < Legacy<pass>::kCount; ++i) {
    auto& result = results[i];
    result.algo = static_cast<typename Legacy<pass>::Algorithm>(i);
    result.time = kNotTimed;
    result.determinism = CUDNN_DETERMINISTIC;
    // A CPU has no tensor cores, whatever the descriptor allows.
    result.mathType = math == CUDNN_FMA_MATH ? CUDNN_FMA_MATH : CUDNN_DEFAULT_MATH;
    result.status =
        guarded([&] { result.memory = required_workspace(engine_algorithm<pass>(result.algo), kernel); });
  }
  return results;
}

// Returns the milliseconds of one run.
float time_once(Algorithm algorithm, const Kernel& kernel, const Tensors& tensors,
                const Workspace& workspace) {
  const auto start = std::chrono::steady_clock::now();
  run(algorithm, kernel, tensors, 1, 0, workspace.data, workspace.size);
  return std::chrono::duration<float, std::milli>(std::chrono::steady_clock::now() - start).count();
}

// Runs each algorithm that can run, once, in the caller's workspace. Without one, each gets a fresh
// workspace.
template <Pass pass>
std::vector<typename Legacy<pass>::Performance> timed(const Kernel& kernel, cudnnMathType_t math,
                                                      const Tensors& tensors, const Workspace* workspace) {
  auto results = survey<pass>(kernel, math);
  for (auto& result : results) {
    if (result.status != CUDNN_STATUS_SUCCESS) continue;
    result.status = guarded([&] {
      const Algorithm algorithm = *engine_algorithm<pass>(result.algo);
      if (workspace == nullptr) {
        const Buffer own(result.memory);
        result.time = time_once(algorithm, kernel, tensors, {own.data(), result.memory});
      } else if (result.memory > 0 && (workspace->data == nullptr || workspace->size < result.memory)) {
        // cuDNN reports this status for such an algorithm, too.
        throw Failure(CUDNN_STATUS_ALLOC_FAILED, "the workspace given is too small");
      } else {
        result.time = time_once(algorithm, kernel, tensors, *workspace);
      }
    });
  }
  std::stable_sort(results.begin(), results.end(), [](const auto& one, const auto& other) {
    const bool one_ran = one.status == CUDNN_STATUS_SUCCESS;
    const bool other_ran = other.status == CUDNN_STATUS_SUCCESS;
    return one_ran != other_ran ? one_ran : one.time < other.time;
  });
  return results;
}

void check_request(cudnnHandle_t handle, int requested, const int* returned, const void* results) {
  require({{"handle", handle}, {"the count returned", returned}, {"results", results}});
  if (requested < 1) bad_parameter(std::to_string(requested) + " results requested: at least 1");
}

template <typename Performance>
void give(const std::vector<Performance>& all, int requested, int* returned, Performance* results) {
  *returned = std::min(requested, static_cast<int>(all.size()));
  std::copy_n(all.begin(), *returned, results);
}

template <Pass pass>
cudnnStatus_t get_count(cudnnHandle_t handle, int* count) {
  return guarded([&] {
    require({{"handle", handle}, {"count", count}});
    *count = Legacy<pass>::kCount;
  });
}

template <Pass pass>
cudnnStatus_t get(cudnnHandle_t handle, const Descriptors& descriptors, int requested, int* returned,
                  typename Legacy<pass>::Performance* results) {
  return guarded([&] {
    check_request(handle, requested, returned, results);
    const Kernel kernel{problem_of(descriptors), pass};
    auto all = survey<pass>(kernel, descriptors.convolution->math);
    std::stable_sort(all.begin(), all.end(), [&](const auto& one, const auto& other) {
      return estimated_cost<pass>(one, kernel) < estimated_cost<pass>(other, kernel);
    });
    give(all, requested, returned, results);
  });
}

template <Pass pass>
cudnnStatus_t find(cudnnHandle_t handle, const Descriptors& descriptors, int requested, int* returned,
                   typename Legacy<pass>::Performance* results) {
  return guarded([&] {
    check_request(handle, requested, returned, results);
    const Kernel kernel{problem_of(descriptors), pass};
    const Problem& problem = kernel.problem;
    const std::size_t item = size_of(descriptors.x->type);
    const auto batch = static_cast<std::size_t>(problem.mini_batch);
    const Buffer x(item * batch * static_cast<std::size_t>(problem.x_sample()));
    const Buffer w(item * static_cast<std::size_t>(problem.w_elements()));
    const Buffer y(item * batch * static_cast<std::size_t>(problem.y_sample()));
    give(timed<pass>(kernel, descriptors.convolution->math, {x.data(), w.data(), y.data()}, nullptr),
         requested, returned, results);
  });
}

template <Pass pass>
cudnnStatus_t find_with(cudnnHandle_t handle, const Descriptors& descriptors, Tensors tensors, int requested,
                        int* returned, typename Legacy<pass>::Performance* results,
                        const Workspace& workspace) {
  return guarded([&] {
    check_request(handle, requested, returned, results);
    require({{"the data of x", tensors.x}, {"the data of w", tensors.w}, {"the data of y", tensors.y}});
    const Kernel kernel{problem_of(descriptors), pass};
    tensors.pitch = pitch_of(kernel.problem, *descriptors.x, *descriptors.y);
    give(timed<pass>(kernel, descriptors.convolution->math, tensors, &workspace), requested, returned,
         results);
  });
}

}  // namespace
}  // namespace mucudnn::host

using mucudnn::Pass;
using mucudnn::host::find;
using mucudnn::host::find_with;
using mucudnn::host::get;
using mucudnn::host::get_count;
using mucudnn::host::input;

extern "C" {

cudnnStatus_t cudnnGetConvolutionForwardAlgorithmMaxCount(cudnnHandle_t handle, int* count) {
  return get_count<Pass::forward>(handle, count);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithmMaxCount(cudnnHandle_t handle, int* count) {
  return get_count<Pass::backward_data>(handle, count);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithmMaxCount(cudnnHandle_t handle, int* count) {
  return get_count<Pass::backward_filter>(handle, count);
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                     cudnnFilterDescriptor_t w,
                                                     cudnnConvolutionDescriptor_t convolution,
                                                     cudnnTensorDescriptor_t y, int requested, int* returned,
                                                     cudnnConvolutionFwdAlgoPerf_t* results) {
  return get<Pass::forward>(handle, {x, w, convolution, y}, requested, returned, results);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t handle, cudnnFilterDescriptor_t w,
                                                          cudnnTensorDescriptor_t dy,
                                                          cudnnConvolutionDescriptor_t convolution,
                                                          cudnnTensorDescriptor_t dx, int requested,
                                                          int* returned,
                                                          cudnnConvolutionBwdDataAlgoPerf_t* results) {
  return get<Pass::backward_data>(handle, {dx, w, convolution, dy}, requested, returned, results);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                            cudnnTensorDescriptor_t dy,
                                                            cudnnConvolutionDescriptor_t convolution,
                                                            cudnnFilterDescriptor_t dw, int requested,
                                                            int* returned,
                                                            cudnnConvolutionBwdFilterAlgoPerf_t* results) {
  return get<Pass::backward_filter>(handle, {x, dw, convolution, dy}, requested, returned, results);
}

cudnnStatus_t cudnnFindConvolutionForwardAlgorithm(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                   cudnnFilterDescriptor_t w,
                                                   cudnnConvolutionDescriptor_t convolution,
                                                   cudnnTensorDescriptor_t y, int requested, int* returned,
                                                   cudnnConvolutionFwdAlgoPerf_t* results) {
  return find<Pass::forward>(handle, {x, w, convolution, y}, requested, returned, results);
}

cudnnStatus_t cudnnFindConvolutionBackwardDataAlgorithm(cudnnHandle_t handle, cudnnFilterDescriptor_t w,
                                                        cudnnTensorDescriptor_t dy,
                                                        cudnnConvolutionDescriptor_t convolution,
                                                        cudnnTensorDescriptor_t dx, int requested,
                                                        int* returned,
                                                        cudnnConvolutionBwdDataAlgoPerf_t* results) {
  return find<Pass::backward_data>(handle, {dx, w, convolution, dy}, requested, returned, results);
}

cudnnStatus_t cudnnFindConvolutionBackwardFilterAlgorithm(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                          cudnnTensorDescriptor_t dy,
                                                          cudnnConvolutionDescriptor_t convolution,
                                                          cudnnFilterDescriptor_t dw, int requested,
                                                          int* returned,
                                                          cudnnConvolutionBwdFilterAlgoPerf_t* results) {
  return find<Pass::backward_filter>(handle, {x, dw, convolution, dy}, requested, returned, results);
}

cudnnStatus_t cudnnFindConvolutionForwardAlgorithmEx(
    cudnnHandle_t handle, cudnnTensorDescriptor_t x_descriptor, const void* x,
    cudnnFilterDescriptor_t w_descriptor, const void* w, cudnnConvolutionDescriptor_t convolution,
    cudnnTensorDescriptor_t y_descriptor, void* y, int requested, int* returned,
    cudnnConvolutionFwdAlgoPerf_t* results, void* workspace, size_t workspace_size) {
  return find_with<Pass::forward>(handle, {x_descriptor, w_descriptor, convolution, y_descriptor},
                                  {input(x), input(w), y}, requested, returned, results,
                                  {workspace, workspace_size});
}

cudnnStatus_t cudnnFindConvolutionBackwardDataAlgorithmEx(
    cudnnHandle_t handle, cudnnFilterDescriptor_t w_descriptor, const void* w,
    cudnnTensorDescriptor_t dy_descriptor, const void* dy, cudnnConvolutionDescriptor_t convolution,
    cudnnTensorDescriptor_t dx_descriptor, void* dx, int requested, int* returned,
    cudnnConvolutionBwdDataAlgoPerf_t* results, void* workspace, size_t workspace_size) {
  return find_with<Pass::backward_data>(handle, {dx_descriptor, w_descriptor, convolution, dy_descriptor},
                                        {dx, input(w), input(dy)}, requested, returned, results,
                                        {workspace, workspace_size});
}

cudnnStatus_t cudnnFindConvolutionBackwardFilterAlgorithmEx(
    cudnnHandle_t handle, cudnnTensorDescriptor_t x_descriptor, const void* x,
    cudnnTensorDescriptor_t dy_descriptor, const void* dy, cudnnConvolutionDescriptor_t convolution,
    cudnnFilterDescriptor_t dw_descriptor, void* dw, int requested, int* returned,
    cudnnConvolutionBwdFilterAlgoPerf_t* results, void* workspace, size_t workspace_size) {
  return find_with<Pass::backward_filter>(handle, {x_descriptor, dw_descriptor, convolution, dy_descriptor},
                                          {input(x), dw, input(dy)}, requested, returned, results,
                                          {workspace, workspace_size});
}

}  // extern "C"
