#include "cudnn/tuning/kernel_timer.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <stdexcept>

#include "cudnn/tuning/values.hpp"

namespace mucudnn {
namespace {

constexpr int kRuns = 7;
constexpr double kBudgetMs = 50;
constexpr int kLeastRacingRuns = 2;
constexpr double kHopeless = 2;  // times the fastest algorithm of the same micro-batch size

Extent extent_to_time(const Device& device, const Problem& problem, std::size_t cap, Protocol protocol) {
  const std::size_t beyond = protocol == Protocol::race ? 0 : device.bytes_beyond_caches();
  return extent_of(problem.with_mini_batch(samples_to_time(problem, cap, beyond)));
}

// A division sums the times of many small slices together with their errors, so a small size gets as many
// runs as the division has slices.
int runs_of(const Kernel& kernel, std::int64_t micro_batch) {
  return static_cast<int>(std::clamp<std::int64_t>(kernel.problem.mini_batch / micro_batch, kRuns,
                                                   std::numeric_limits<int>::max()));
}

}  // namespace

std::int64_t samples_to_time(const Problem& problem, std::size_t cap, std::size_t bytes_beyond_caches) {
  const Extent sample = extent_of(problem.with_mini_batch(1));
  const std::size_t bytes = sample.x + sample.y;
  const auto enough = static_cast<std::int64_t>((bytes_beyond_caches + bytes - 1) / bytes);
  const std::int64_t wide = std::max(problem.mini_batch, enough);
  return extent_of(problem.with_mini_batch(wide)).total() <= cap ? wide : problem.mini_batch;
}

KernelTimer::KernelTimer(Engine& engine, Device& device, const Kernel& kernel, std::size_t workspace,
                         std::size_t cap, Protocol protocol)
    : engine_(engine), device_(device), kernel_(kernel) {
  const Extent extent = extent_to_time(device, kernel.problem, cap, protocol);
  if (extent.total() > cap || workspace > cap - extent.total()) throw std::bad_alloc();
  region_ = {{allocate_random(extent.x), allocate_random(extent.w), allocate_random(extent.y)}, extent};
  for (std::size_t i = 0; i < extent.operands.size(); ++i) {
    if (extent.operands[i] > 0) region_.tensors.operands[i] = allocate_random(extent.operands[i]);
  }
  workspace_ = {memories_.emplace_back(allocate(device, workspace)).get(), workspace};
}

Timing KernelTimer::measure(const Task& task, double hopeless_ms) {
  double& fastest =
      fastest_.try_emplace(task.micro_batch, std::numeric_limits<double>::infinity()).first->second;
  const Timing timing = time(task, runs_of(kernel_, task.micro_batch), kBudgetMs,
                             std::min(hopeless_ms, kHopeless * fastest), kLeastRuns);
  fastest = std::min(fastest, timing.time_ms);
  return timing;
}

Timing KernelTimer::race(const Task& task, double hopeless_ms, double budget_ms) {
  return time(task, kRaceRuns, budget_ms, hopeless_ms, kLeastRacingRuns);
}

Timing KernelTimer::time(const Task& task, int runs, double budget_ms, double hopeless_ms, int least_runs) {
  const auto workspace = static_cast<std::size_t>(task.workspace);
  if (workspace > workspace_.size)
    throw std::invalid_argument("a task needs " + std::to_string(workspace) +
                                " bytes of workspace, the timer has " + std::to_string(workspace_.size));
  return estimate(
      mucudnn::measure(engine_, device_, kernel_.with_mini_batch(task.micro_batch), task.algorithm, region_,
                       {workspace_.data, workspace}, runs, budget_ms, hopeless_ms, least_runs),
      task.algorithm);
}

char* KernelTimer::allocate_random(std::size_t size) {
  char* const data = memories_.emplace_back(allocate(device_, size)).get();
  fill_random(device_, kernel_.problem.data_type, data, size, 1);
  return data;
}

std::int64_t room_for_workspace(const Device& device, const Problem& problem, std::size_t cap,
                                Protocol protocol) {
  return static_cast<std::int64_t>(cap) -
         static_cast<std::int64_t>(extent_to_time(device, problem, cap, protocol).total());
}

}  // namespace mucudnn
