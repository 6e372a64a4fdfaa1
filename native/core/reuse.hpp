// Workspace reuse (WR): how to divide one kernel's mini-batch, by dynamic programming.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan.hpp"

namespace mucudnn {

enum class BatchPolicy { power_of_two, all, undivided };

// Returns the micro-batch sizes that a policy measures, ascending. The mini-batch is always one of them.
// Sizes that would take more slices than the kernel may have (core/accumulation.hpp) are missing.
std::vector<std::int64_t> micro_batch_sizes(BatchPolicy policy, const Kernel& kernel);

// Returns the Pareto-optimal configurations, time against workspace: workspace ascending, time descending. WR
// under a limit is the last configuration that stays within the limit. Among configurations of equal time
// (within 1e-12 relative), the smaller workspace wins, then the smaller number of parts. A configuration's
// parts are sorted by descending size. The set is empty if the measured sizes do not add up to the
// mini-batch.
std::vector<Configuration> desirable_set(std::vector<MicroConfiguration> measured, std::int64_t mini_batch);

// Returns the fastest configuration of `measured`, which the caller has restricted to the limit. It is the
// last configuration of the desirable set, except for ties, but computed without the others. It is empty if
// the measured sizes do not add up to the mini-batch.
Configuration reuse_workspace(const std::vector<const MicroConfiguration*>& measured,
                              std::int64_t mini_batch);

}  // namespace mucudnn
