// Answers cudnnGet...Algorithm, cudnnFind...Algorithm and cudnnGet...WorkspaceSize.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "shim/state/state.hpp"

namespace mucudnn::shim {

enum class Question { which_algorithm, workspace_size };

// A question of the program about one convolution and algorithm.
struct Query {
  cudnnHandle_t handle;
  const LegacyDescriptors& descriptors;
  Pass pass;
  unsigned algorithm;
};

struct Selection {
  std::shared_ptr<const SeenKernel> seen;
  const PreparedChoice* choice;  // it lives as long as `seen`
  // The bytes to answer: enough for the choice. If the limit allows it, also enough for the caller's own
  // algorithm, which must run if the choice fails.
  std::int64_t workspace;
};

// Selects the choice that will run an execution with this algorithm and at most `most` bytes of workspace.
// `own` is the library's answer in bytes; it stands if nothing is returned. A kernel seen for the first time
// is measured here if the mode allows it.
std::optional<Selection> select(State& state, const Query& query, Question question, std::int64_t own,
                                std::int64_t most) noexcept;

cudnnMathType_t math_of(const State& state, const LegacyDescriptors& descriptors) noexcept;

// Puts our answer in front of the library's results. It names the algorithm of the library's first result:
// executions with that algorithm run by our choice.
template <typename Performance>
void put_first(const Selection& selection, cudnnMathType_t math, int requested, int* returned,
               Performance* results) {
  const int kept = std::min(*returned, requested - 1);
  std::copy_backward(results, results + kept, results + kept + 1);
  *returned = kept + 1;
  Performance& first = results[0];
  first.status = CUDNN_STATUS_SUCCESS;
  first.time = static_cast<float>(selection.choice->time_ms);
  first.memory = static_cast<std::size_t>(selection.workspace);
  first.determinism = selection.choice->is_deterministic ? CUDNN_DETERMINISTIC : CUDNN_NON_DETERMINISTIC;
  // Report the descriptor's own math type. Frameworks copy it into the descriptor, and we look the kernel up
  // by that descriptor.
  first.mathType = math;
}

}  // namespace mucudnn::shim
