// What a program is told that asks which algorithm to take, or how much workspace one needs.
#pragma once

#include <algorithm>

#include "shim/state.hpp"

namespace mucudnn::shim {

enum class Question { which_algorithm, workspace_size };

// What an execution with this algorithm and at most so many bytes of workspace will run by; null where the
// library's own answer stands. A kernel seen for the first time is measured here, as far as the mode allows.
const Point* select(State& state, cudnnHandle_t handle, const CallerDescriptors& descriptors, Pass pass,
                    Question question, unsigned algorithm, std::int64_t workspace) noexcept;

cudnnMathType_t math_of(const State& state, const CallerDescriptors& descriptors) noexcept;

// Puts our answer in front of the library's, which it was found by: it goes by the algorithm of the first.
template <typename Performance>
void put_first(const Point& point, cudnnMathType_t math, int requested, int* returned, Performance* results) {
  const int kept = std::min(*returned, requested - 1);
  std::copy_backward(results, results + kept, results + kept + 1);
  *returned = kept + 1;
  Performance& first = results[0];
  first.status = CUDNN_STATUS_SUCCESS;
  first.time = static_cast<float>(point.time_ms);
  first.memory = static_cast<std::size_t>(point.workspace);
  first.determinism = point.is_deterministic ? CUDNN_DETERMINISTIC : CUDNN_NON_DETERMINISTIC;
  // Frameworks set the descriptor to what stands here, and it is by that descriptor that we know the kernel.
  first.mathType = math;
}

}  // namespace mucudnn::shim
