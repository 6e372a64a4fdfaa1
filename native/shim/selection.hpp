// Answers cudnnGet...Algorithm, cudnnFind...Algorithm and cudnnGet...WorkspaceSize.
#pragma once

#include <algorithm>
#include <optional>

#include "shim/state.hpp"

namespace mucudnn::shim {

enum class Question { which_algorithm, workspace_size };

// What a program asks about.
struct Asked {
  cudnnHandle_t handle;
  const CallerDescriptors& descriptors;
  Pass pass;
  unsigned algorithm;
};

struct Selection {
  const Point* point;
  std::int64_t workspace;  // bytes, the answer: what the point needs and, as far as the limit allows, what
                           // the caller's own algorithm needs, by which a call may have to be run after all
};

// Selects what an execution with the algorithm and at most `most` bytes of workspace will run by, where the
// library has answered `own` bytes; nothing where that answer stands. A kernel seen for the first time is
// measured here, as far as the mode allows.
std::optional<Selection> select(State& state, const Asked& asked, Question question, std::int64_t own,
                                std::int64_t most) noexcept;

cudnnMathType_t math_of(const State& state, const CallerDescriptors& descriptors) noexcept;

// Puts our answer in front of the library's, which it was found by: it goes by the algorithm of the first.
template <typename Performance>
void put_first(const Selection& selection, cudnnMathType_t math, int requested, int* returned,
               Performance* results) {
  const int kept = std::min(*returned, requested - 1);
  std::copy_backward(results, results + kept, results + kept + 1);
  *returned = kept + 1;
  Performance& first = results[0];
  first.status = CUDNN_STATUS_SUCCESS;
  first.time = static_cast<float>(selection.point->time_ms);
  first.memory = static_cast<std::size_t>(selection.workspace);
  first.determinism = selection.point->is_deterministic ? CUDNN_DETERMINISTIC : CUDNN_NON_DETERMINISTIC;
  // Frameworks set the descriptor to what stands here, and it is by that descriptor that we know the kernel.
  first.mathType = math;
}

}  // namespace mucudnn::shim
