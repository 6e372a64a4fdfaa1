// A kernel whose configurations are known. It chooses the one that runs a call.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cudnn/engines/legacy_engine.hpp"
#include "shim/decisions/measured_kernel.hpp"

namespace mucudnn::shim {

class KnownKernel {
 public:
  // The permission for each legacy algorithm that a caller may request.
  using Permissions = std::array<Permission, kMostLegacyAlgorithms>;

  // Holds prepared choices. `preferred` has the indices of the planned choices: the first one that is
  // permitted and fits is taken, and if there is none, the fastest of all.
  KnownKernel(Pass pass, std::vector<PreparedChoice> choices, const Permissions& permissions,
              std::vector<std::size_t> preferred);

  // Holds measurements, for the graph API. Each execution plan of the caller has a permission of its own, and
  // only the choice that it leads to is prepared. The race was run for the caller's algorithm `raced_for`,
  // within its workspace; an empty name means that the measurements serve every caller.
  KnownKernel(Pass pass, MeasuredKernel measured, std::string raced_for);

  bool is_planned() const noexcept { return !preferred_.empty(); }

  bool is_measured() const noexcept { return measured_.has_value(); }
  // Returns whether the caller's own algorithm was measured too. Also true if nothing was measured.
  bool is_measured_against(const std::string& own) const {
    return !measured_ || measured_->has_undivided(own);
  }
  // Returns whether everything that a caller with this algorithm needs is measured.
  bool is_decided_for(const std::string& own) const {
    return is_measured_against(own) && (raced_for_.empty() || raced_for_ == own);
  }

  // Returns the choice that runs a call with this algorithm and workspace; null if none is permitted and
  // fits. `may_group` is that of Permission.
  const PreparedChoice* choice_for(unsigned algorithm, std::int64_t workspace, bool may_group) const noexcept;

  // Returns the choice that runs a call of the graph API with this permission and workspace. The choice may
  // still have to be prepared. Throws std::bad_alloc.
  std::optional<PreparedChoice> choice_within(const Permission& permission, std::int64_t workspace) const;

  // Returns whether there are choices and every one takes more than `limit` bytes of workspace.
  bool all_exceed(std::int64_t limit) const noexcept;

  // Returns the most bytes of workspace that a call with this algorithm permits.
  std::int64_t limit(unsigned algorithm) const noexcept { return permissions_[algorithm].limit; }

  // Returns the workspace of the planned choices, if there are any.
  std::optional<std::int64_t> planned_workspace() const noexcept;

  std::string text() const;  // describes the choices, for the log

 private:
  const PreparedChoice* ready_choice(const Permission& permission, std::int64_t workspace) const noexcept;

  Pass pass_;
  std::vector<PreparedChoice> choices_;
  Permissions permissions_{};
  std::vector<std::size_t> preferred_;
  std::optional<MeasuredKernel> measured_;
  std::string raced_for_;
};

}  // namespace mucudnn::shim
