// The measuring of one kernel's algorithms at several micro-batch sizes, where nobody watches.
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

// Bytes of the device's memory that measure_all() takes for them. Throws as it does.
std::size_t memory_to_measure(Device& device, const Problem& problem, const std::vector<Task>& tasks);

// Whether any of them can be measured in half of the device's memory that is available.
bool any_fits_memory(Device& device, const Problem& problem, const std::vector<Task>& tasks);

// What is in neither would take more than half of the device's memory that is available.
struct Survey {
  std::vector<MicroConfiguration> measured;
  std::vector<Task> failed;
};

// Times the tasks on tensors of their own, freed in the end; `problem` has the whole mini-batch. Throws
// std::bad_alloc where not even the tensors can be had.
Survey measure_all(Engine& engine, Device& device, const Problem& problem, Pass pass,
                   const std::vector<Task>& tasks);

}  // namespace mucudnn
