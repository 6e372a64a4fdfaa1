// Measures the algorithms of one kernel at several micro-batch sizes, unattended, for the drop-in.
#pragma once

#include <vector>

#include "core/plan.hpp"
#include "cudnn/device.hpp"
#include "cudnn/engine.hpp"

namespace mucudnn {

// An algorithm to be timed at a micro-batch size.
struct Task {
  std::int64_t micro_batch = 0;
  std::string algorithm;
  std::size_t workspace = 0;
};

// Returns the bytes of device memory that measure_all() takes for these tasks. Throws as it does.
std::size_t memory_to_measure(Device& device, const Problem& problem, const std::vector<Task>& tasks);

// Returns whether at least one task can be measured in half of the device's available memory.
bool any_fits_memory(Device& device, const Problem& problem, const std::vector<Task>& tasks);

// The results of measure_all(). A task in neither list would take more than half of the device's available
// memory.
struct Survey {
  std::vector<MicroConfiguration> measured;
  std::vector<Task> failed;
};

// Measures the tasks on tensors of its own, which it frees at the end. `kernel` has the whole mini-batch.
// Throws std::bad_alloc if there is not enough memory for the tensors alone.
Survey measure_all(Engine& engine, Device& device, const Kernel& kernel, const std::vector<Task>& tasks);

}  // namespace mucudnn
