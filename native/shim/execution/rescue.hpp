// The rescue: computes a call in slices of its mini-batch if the library lacks memory or workspace. If a
// prepared choice fails partway, the rescue computes the remaining tiles and samples.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "shim/state/state.hpp"

namespace mucudnn::shim {

// The end of a call that we ran.
struct CallResult {
  cudnnStatus_t status = CUDNN_STATUS_EXECUTION_FAILED;
  // False if no sample was computed, so that the caller's own call can still be made, or its status stands.
  bool is_final = false;
};

// A call of either API on a kernel that we know.
struct KnownCall {
  SeenKernel& seen;
  cudnnHandle_t handle;
  Arguments arguments;
  Scratch workspace;
  const char* own;  // the caller's own algorithm or engine
};

// Returns whether the library reports that it could not allocate device memory.
inline bool lacks_memory(cudnnStatus_t status) {
  return status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
}

inline std::int64_t bytes(std::size_t size) {
  return static_cast<std::int64_t>(std::min<std::size_t>(size, kNoLimit));
}

// Rescues a call that the library itself refused with `status`, if it lacked memory: in smaller slices.
CallResult rescue(State& state, const KnownCall& call, cudnnStatus_t status) noexcept;

// Computes the tiles that are left of a sample after an algorithm in tiles failed in it, which makes `done` a
// number of whole samples. It is 0 for a call that does not read its output, since that call may be made
// again.
cudnnStatus_t complete_tiles(State& state, const KnownCall& call, Progress& done) noexcept;

// Computes the samples from `done` on, in slices that fit the workspace. The samples before are complete.
CallResult rescue_rest(State& state, const KnownCall& call, std::int64_t done) noexcept;

// Tries slices of `largest` samples and ever smaller ones, down to single samples: by the algorithm `own`
// first, then by those that others() returns. `attempt(algorithm, size)` returns nothing if such slices do
// not fit. An algorithm whose slices fail gives way to the next one, unless the library lacked memory for
// them. Returns the last status; nothing if no slices fit.
template <typename Algorithm, typename Others, typename Attempt>
std::optional<cudnnStatus_t> try_slices(std::int64_t largest, const Algorithm& own, Others others,
                                        Attempt attempt) {
  std::optional<cudnnStatus_t> last;
  const auto succeeds = [&](const Algorithm& algorithm) {
    for (std::int64_t size = largest; size > 0; size = size == 1 ? 0 : (size + 1) / 2) {
      const std::optional<cudnnStatus_t> status = attempt(algorithm, size);
      if (!status) continue;
      last = status;
      if (!lacks_memory(*status)) return *status == CUDNN_STATUS_SUCCESS;
    }
    return false;
  };
  if (succeeds(own)) return last;
  for (const Algorithm& other : others()) {
    if (other != own && succeeds(other)) break;
  }
  return last;
}

}  // namespace mucudnn::shim
