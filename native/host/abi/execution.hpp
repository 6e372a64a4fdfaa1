// Running one algorithm for a caller who brings the memory.
#pragma once

#include "host/abi/mapping.hpp"

namespace mucudnn::host {

// The engine's Tensors serve all passes, so that they hold inputs without their const.
inline void* input(const void* data) { return const_cast<void*>(data); }

// Bytes to ask the caller for. The engine wants them aligned, and a caller's pointer need not be: where
// anything is needed at all, the room to align it is asked for too. Throws Failure, NOT_SUPPORTED, where
// `variant` is nothing or cannot run the problem.
std::size_t required_workspace(const std::optional<Variant>& variant, Pass pass, const Problem& problem);

// The caller's workspace, aligned for the engine. Throws Failure where it is not what required_workspace
// asks for.
void* usable_workspace(const std::optional<Variant>& variant, Pass pass, const Problem& problem,
                       void* workspace, std::size_t workspace_size);

// alpha and beta are double for double data, float for all others.
double scale_of(const void* value, cudnnDataType_t type);

// Throws Failure before anything is written where the workspace is not what required_workspace asks for.
inline void run(const std::optional<Variant>& variant, Pass pass, const Problem& problem,
                const Tensors& tensors, double alpha, double beta, void* workspace,
                std::size_t workspace_size) {
  void* const usable = usable_workspace(variant, pass, problem, workspace, workspace_size);
  convolve(*variant, pass, problem, tensors, alpha, beta, usable);
}

}  // namespace mucudnn::host
