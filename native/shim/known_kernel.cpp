#include "shim/known_kernel.hpp"

#include <algorithm>
#include <cstdio>

namespace mucudnn::shim {
namespace {

bool permits(const Permission& permission, const Point& point, std::int64_t workspace) {
  return point.workspace <= workspace && point.workspace <= permission.limit &&
         permission.allows(point.is_deterministic, point.is_legacy);
}

}  // namespace

KnownKernel::KnownKernel(Pass pass, std::vector<Point> points, const Permissions& permissions, int preferred)
    : pass_(pass), points_(std::move(points)), permissions_(permissions), preferred_(preferred) {}

KnownKernel::KnownKernel(Pass pass, MeasuredKernel measured) : pass_(pass), measured_(std::move(measured)) {}

const Point* KnownKernel::choose(unsigned algorithm, std::int64_t workspace) const noexcept {
  if (legacy_algorithm(pass_, algorithm) == nullptr) return nullptr;
  return choose_ready(permissions_[algorithm], workspace);
}

std::optional<Point> KnownKernel::choose(const Permission& permission, std::int64_t workspace) const {
  if (measured_) return measured_->fastest(permission, workspace);
  const Point* const ready = choose_ready(permission, workspace);
  return ready == nullptr ? std::nullopt : std::optional(*ready);
}

const Point* KnownKernel::choose_ready(const Permission& permission, std::int64_t workspace) const noexcept {
  if (preferred_ >= 0 && permits(permission, points_[static_cast<std::size_t>(preferred_)], workspace)) {
    return &points_[static_cast<std::size_t>(preferred_)];
  }
  const Point* fastest = nullptr;
  for (const Point& point : points_) {
    if (!permits(permission, point, workspace)) continue;
    if (fastest == nullptr || point.time_ms < fastest->time_ms) fastest = &point;
  }
  return fastest;
}

bool KnownKernel::is_above(std::int64_t limit) const noexcept {
  return !points_.empty() && std::all_of(points_.begin(), points_.end(),
                                         [&](const Point& point) { return point.workspace > limit; });
}

bool KnownKernel::is_own(const Point& point, unsigned algorithm) const noexcept {
  return shim::is_own(point, legacy_algorithm(pass_, algorithm));
}

std::optional<std::int64_t> KnownKernel::planned_workspace() const noexcept {
  if (!is_planned()) return std::nullopt;
  return points_[static_cast<std::size_t>(preferred_)].workspace;
}

std::string KnownKernel::text() const {
  std::vector<Point> points = measured_ ? measured_->desirable() : points_;
  if (is_planned()) points = {points[static_cast<std::size_t>(preferred_)]};
  std::string text;
  for (const Point& point : points) {
    char time[32];
    std::snprintf(time, sizeof time, "%.4g", point.time_ms);
    text += (text.empty() ? "" : " or ") + describe(point.configuration) + " in " + time + " ms with " +
            std::to_string(point.workspace) + " bytes";
  }
  if (text.empty()) return "nothing can run it";
  return (is_planned() ? "as planned: " : "the fastest that fits: ") + text;
}

}  // namespace mucudnn::shim
