// A kernel whose configurations are known, and which of them a call runs by.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cudnn/legacy_engine.hpp"
#include "shim/measured_kernel.hpp"

namespace mucudnn::shim {

class KnownKernel {
 public:
  // Of each legacy algorithm that a caller may ask for.
  using Permissions = std::array<Permission, kMostLegacyAlgorithms>;

  // Of points that are ready. `preferred` is the index of the one to take wherever it may be taken; -1: the
  // fastest.
  KnownKernel(Pass pass, std::vector<Point> points, const Permissions& permissions, int preferred);

  // For callers of the graph API: each of their plans says what it permits before it is run, and then no more
  // needs to be made ready than what that chooses.
  KnownKernel(Pass pass, MeasuredKernel measured);

  bool is_planned() const noexcept { return preferred_ >= 0; }

  bool is_measured() const noexcept { return measured_.has_value(); }
  // Whether the caller's own algorithm was measured as well, where anything was.
  bool is_measured_against(const std::string& own) const { return !measured_ || measured_->has_whole(own); }

  // What a call with this algorithm and so many bytes of workspace runs by; null where nothing is permitted
  // and fits.
  const Point* choose(unsigned algorithm, std::int64_t workspace) const noexcept;

  // The same for a caller of the graph API; the point may be yet to be made ready. Throws std::bad_alloc.
  std::optional<Point> choose(const Permission& permission, std::int64_t workspace) const;

  // Whether there is something to choose from, all of it above so many bytes of workspace.
  bool is_above(std::int64_t limit) const noexcept;

  // The most bytes of workspace that a call with this algorithm permits.
  std::int64_t limit(unsigned algorithm) const noexcept { return permissions_[algorithm].limit; }

  // Whether a point is just what the caller asks for.
  bool is_own(const Point& point, unsigned algorithm) const noexcept;

  // Of the planned point, where there is one.
  std::optional<std::int64_t> planned_workspace() const noexcept;

  std::string text() const;  // what may be chosen from, for people

 private:
  const Point* choose_ready(const Permission& permission, std::int64_t workspace) const noexcept;

  Pass pass_;
  std::vector<Point> points_;
  Permissions permissions_{};
  int preferred_ = -1;
  std::optional<MeasuredKernel> measured_;
};

}  // namespace mucudnn::shim
