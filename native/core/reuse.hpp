// Workspace reuse (WR): how to divide one kernel's mini-batch, by dynamic programming.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan.hpp"

namespace mucudnn {

enum class BatchPolicy { power_of_two, all, undivided };

// The micro-batch sizes that a policy measures, ascending; the mini-batch itself is always one of them.
std::vector<std::int64_t> micro_batch_sizes(BatchPolicy policy, std::int64_t mini_batch);

// The Pareto-optimal configurations, time against workspace: workspace ascending, time descending; WR under
// a limit is the last that stays within it. Of configurations of equal time (within 1e-12 relative) the one
// with less workspace stays, then the one with fewer parts; parts stand with sizes descending. Empty where
// the measured sizes do not add to the mini-batch.
std::vector<Configuration> desirable_set(std::vector<MicroConfiguration> measured, std::int64_t mini_batch);

// WR where all that was measured is within the limit: the last of the desirable set but for ties, and found
// without the others. Empty where the measured sizes do not add to the mini-batch.
Configuration reuse_workspace(const std::vector<const MicroConfiguration*>& measured,
                              std::int64_t mini_batch);

}  // namespace mucudnn
