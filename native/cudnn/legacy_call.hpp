// A convolution call of the legacy API, in one form for all passes.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "cudnn/engine.hpp"
#include "cudnn/library.hpp"

namespace mucudnn {

// The descriptors of one convolution. In a backward pass x, w or y is the gradient.
struct LegacyDescriptors {
  cudnnTensorDescriptor_t x;
  cudnnFilterDescriptor_t w;
  cudnnConvolutionDescriptor_t convolution;
  cudnnTensorDescriptor_t y;
};

struct LegacyCall {
  cudnnHandle_t handle;
  Pass pass;
  LegacyDescriptors descriptors;
  unsigned algorithm;  // an enumerator of the pass's type
  const void* alpha;
  const void* beta;  // the factor of z in a fused convolution
  char *x, *w, *y;
  Scratch workspace;
  std::optional<Fusion> fusion{};
  cudnnTensorDescriptor_t z_descriptor = nullptr;
};

// Returns false for a call that lacks a pointer, which the library refuses.
inline bool is_complete(const LegacyCall& call) {
  const bool fusion_is_complete =
      !call.fusion || (call.fusion->z != nullptr && call.fusion->bias != nullptr &&
                       call.fusion->bias_descriptor != nullptr && call.fusion->activation != nullptr);
  return call.handle != nullptr && call.alpha != nullptr && call.beta != nullptr && call.x != nullptr &&
         call.w != nullptr && call.y != nullptr &&
         (call.workspace.data != nullptr || call.workspace.size == 0) && fusion_is_complete;
}

// Calls the library's function of the pass.
cudnnStatus_t execute(const Library& library, const LegacyCall& call);

// Asks the library for the workspace of an algorithm of the pass.
cudnnStatus_t get_workspace_size(const Library& library, cudnnHandle_t handle, Pass pass,
                                 const LegacyDescriptors& descriptors, unsigned algorithm, std::size_t& size);

// The notes of the library's heuristics on an algorithm of the pass.
struct LegacyNotes {
  unsigned algorithm;
  bool is_deterministic;
  cudnnMathType_t math;
};

// Asks the heuristics for their notes. They may leave out algorithms that cannot run.
cudnnStatus_t get_notes(const Library& library, cudnnHandle_t handle, Pass pass,
                        const LegacyDescriptors& descriptors, std::vector<LegacyNotes>& notes);

}  // namespace mucudnn
