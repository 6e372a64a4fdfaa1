// The race (core/race.hpp) between the algorithms of a kernel, for the callers that the drop-in has.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/race.hpp"
#include "cudnn/kernel_timer.hpp"
#include "shim/decisions/measured_kernel.hpp"

namespace mucudnn::shim {

// An algorithm at a micro-batch size that can be measured.
struct Missing {
  Task task;
  bool is_deterministic = false;
  bool takes_strides = false;
};

// The measurements of a kernel that are known, and the ones that are missing.
struct KernelTimes {
  std::vector<std::int64_t> unlisted;  // micro-batch sizes whose candidates are not known
  std::vector<Measured> measured;
  std::vector<Missing> missing;
};

// Returns what the callers of a kernel permit, limits ascending. A caller that does not ask for its workspace
// brings what its own algorithm needs, so there is a permission for that too. `limit` is the user's.
std::vector<Permission> permissions_of(const std::vector<Listed>& callers, std::optional<std::int64_t> limit);

class KernelRace {
 public:
  // A race looks for the best choice within each permission. Without permissions nothing is measured. `own`
  // is the engine of the program's execution plan (graph API). The race measures it first, undivided, to know
  // which time a division has to undercut. `own` is null for the legacy API, where each call names its
  // algorithm.
  KernelRace(std::int64_t mini_batch, const Listed* own, std::vector<Permission> permissions,
             std::optional<double> bytes_per_ms, bool is_on_gpu);

  // Returns the most workspace in bytes that a candidate may need.
  std::int64_t limit() const { return permissions_.empty() ? -1 : permissions_.back().limit; }

  // Returns the place in `times.missing` of the measurement to make next, among those that `fits` accepts;
  // nothing if the race is over.
  std::optional<std::size_t> next(const KernelTimes& times,
                                  const std::function<bool(const Task&)>& fits) const;

  // Measures the candidate at this place as a race does. Throws what KernelTimer::race() throws.
  Timing measure(KernelTimer& timer, const KernelTimes& times, std::size_t place) const;

 private:
  std::optional<std::size_t> next_within(const Permission& permission, const KernelTimes& times,
                                         const std::function<bool(const Task&)>& fits) const;

  std::int64_t mini_batch_;
  const Listed* own_;
  std::vector<Permission> permissions_;
  std::optional<double> bytes_per_ms_;
  bool is_on_gpu_;
};

}  // namespace mucudnn::shim
