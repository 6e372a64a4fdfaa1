// The cost of one algorithm, and its run in memory that the caller brings.
#pragma once

#include "host/abi/mapping.hpp"

namespace mucudnn::host {

// Returns the bytes to ask the caller for. If the algorithm needs any workspace, they include room to align
// it, because the caller's pointer may have less than the engine's alignment. Throws Failure, NOT_SUPPORTED,
// if `variant` is empty or cannot run the problem.
std::size_t required_workspace(const std::optional<Variant>& variant, const Kernel& kernel);

// The memory that a caller brings for the algorithm.
struct Workspace {
  void* data;
  std::size_t size;
};

// Returns the caller's workspace, aligned for the engine. Throws Failure if it is missing or smaller than
// required_workspace().
void* usable_workspace(const std::optional<Variant>& variant, const Kernel& kernel, Workspace workspace);

// Reads alpha or beta, which is double for double data, float for all others.
double scale_of(const void* value, cudnnDataType_t type);

// Throws Failure before anything is written if the workspace is missing or smaller than required_workspace().
inline void run(const std::optional<Variant>& variant, const Kernel& kernel, const Tensors& tensors,
                double alpha, double beta, const Workspace& workspace) {
  void* const usable = usable_workspace(variant, kernel, workspace);
  convolve(*variant, kernel, tensors, alpha, beta, usable);
}

// Returns a rough cost in multiplications: those of the method, and kTraffic for each number that goes
// through the workspace. A core does about kTraffic multiplications while memory writes and reads one number.
double estimated_cost(Algorithm algorithm, const Kernel& kernel);

}  // namespace mucudnn::host
