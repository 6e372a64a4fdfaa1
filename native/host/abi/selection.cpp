// The choice of an algorithm: by a cost model (Get), or by running them all (Find, FindEx).
#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <vector>

#include "host/abi/execution.hpp"

namespace mucudnn::host {
namespace {

constexpr float kNotTimed = -1;

struct alignas(64) Line {
  char bytes[64];
};

// Returns zeroed memory for timing: its pages are mapped already, and zeros never slow arithmetic down.
std::vector<Line> zeros(std::size_t size) { return std::vector<Line>(size / sizeof(Line) + 1); }

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

// Runs each algorithm that can run, once, in the caller's workspace, or each in a fresh workspace if the
// caller brings none.
std::vector<Result> timed(const Kernel& kernel, const Tensors& tensors,
                          const std::optional<Workspace>& workspace) {
  using Clock = std::chrono::steady_clock;
  auto results = list_algorithms(kernel);
  for (Result& result : results) {
    if (!result.can_run()) continue;
    result.status = guarded([&] {
      auto own = zeros(workspace ? 0 : result.memory);
      const Workspace used = workspace.value_or(Workspace{own.data(), result.memory});
      // cuDNN reports this status for such an algorithm, too.
      if (result.memory > 0 && (used.data == nullptr || used.size < result.memory))
        throw Failure(CUDNN_STATUS_ALLOC_FAILED, "the workspace is too small");
      const auto start = Clock::now();
      run(engine_algorithm(kernel.pass, result.number), kernel, tensors, 1, 0, used);
      result.time = std::chrono::duration<float, std::milli>(Clock::now() - start).count();
    });
  }
  std::stable_sort(results.begin(), results.end(), [](const Result& a, const Result& b) {
    return a.can_run() != b.can_run() ? a.can_run() : a.time < b.time;
  });
  return results;
}

// Runs each algorithm in memory of its own.
std::vector<Result> timed_alone(const Kernel& kernel) {
  const Problem& problem = kernel.problem;
  const std::size_t item = size_of(problem.data_type);
  const auto batch = static_cast<std::size_t>(problem.mini_batch);
  auto x = zeros(item * batch * static_cast<std::size_t>(problem.x_sample()));
  auto w = zeros(item * static_cast<std::size_t>(problem.w_elements()));
  auto y = zeros(item * batch * static_cast<std::size_t>(problem.y_sample()));
  return timed(kernel, {x.data(), w.data(), y.data()}, {});
}

// Writes the first of the results that list(kernel) returns.
template <typename Performance, typename List>
cudnnStatus_t write_results(cudnnHandle_t handle, const Descriptors& descriptors, int requested,
                            int* returned, Performance* performances, const List& list) {
  return guarded([&] {
    require("handle, the count returned, results", {handle, returned, performances});
    if (requested < 1) bad_parameter(requested, " results requested: at least 1");
    const std::vector<Result> results = list(kernel_of(descriptors));
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

}  // namespace
}  // namespace mucudnn::host

using namespace mucudnn::host;

extern "C" {

#define MUCUDNN_DEFINE(Name, Short, which, a, b, c)                                                          \
  cudnnStatus_t cudnnGetConvolution##Name##AlgorithmMaxCount(cudnnHandle_t handle, int* count) {             \
    return guarded([&] {                                                                                     \
      require("handle, count", {handle, count});                                                             \
      *count = algorithm_count(mucudnn::Pass::which);                                                        \
    });                                                                                                      \
  }                                                                                                          \
                                                                                                             \
  cudnnStatus_t cudnnGetConvolution##Name##Algorithm_v7 MUCUDNN_LIST_PARAMETERS(Short, a, b, c) {            \
    const Descriptors used{mucudnn::Pass::which, x_descriptor, w_descriptor, convolution, y_descriptor};     \
    return write_results(handle, used, requested, returned, results, ranked);                                \
  }                                                                                                          \
                                                                                                             \
  cudnnStatus_t cudnnFindConvolution##Name##Algorithm MUCUDNN_LIST_PARAMETERS(Short, a, b, c) {              \
    const Descriptors used{mucudnn::Pass::which, x_descriptor, w_descriptor, convolution, y_descriptor};     \
    return write_results(handle, used, requested, returned, results, timed_alone);                           \
  }                                                                                                          \
                                                                                                             \
  cudnnStatus_t cudnnFindConvolution##Name##AlgorithmEx MUCUDNN_FIND_PARAMETERS(Short, a, b, c) {            \
    const Descriptors used{mucudnn::Pass::which, x_descriptor, w_descriptor, convolution, y_descriptor};     \
    return write_results(handle, used, requested, returned, results, [&](const mucudnn::Kernel& kernel) {    \
      return timed(kernel, tensors_of(used, kernel.problem, x, w, y), Workspace{workspace, workspace_size}); \
    });                                                                                                      \
  }
MUCUDNN_PASSES(MUCUDNN_DEFINE)
#undef MUCUDNN_DEFINE

}  // extern "C"
