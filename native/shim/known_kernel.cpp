#include "shim/known_kernel.hpp"

#include <cstdio>

namespace mucudnn::shim {

bool is_own(const Point& point, const char* algorithm) noexcept {
  return point.configuration.size() == 1 && point.configuration.front().algorithm == algorithm;
}

KnownKernel::KnownKernel(Pass pass, std::vector<Point> points, const Permissions& permissions, int preferred)
    : pass_(pass), points_(std::move(points)), permissions_(permissions), preferred_(preferred) {}

const Point* KnownKernel::choose(unsigned algorithm, std::int64_t workspace) const noexcept {
  if (legacy_algorithm(pass_, algorithm) == nullptr) return nullptr;
  return choose(permissions_[algorithm], workspace);
}

const Point* KnownKernel::choose(const Permission& permission, std::int64_t workspace) const noexcept {
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

bool KnownKernel::is_own(const Point& point, unsigned algorithm) const noexcept {
  return shim::is_own(point, legacy_algorithm(pass_, algorithm));
}

std::optional<std::int64_t> KnownKernel::planned_workspace() const noexcept {
  if (!is_planned()) return std::nullopt;
  return points_[static_cast<std::size_t>(preferred_)].workspace;
}

std::string KnownKernel::text() const {
  std::string text;
  for (std::size_t i = 0; i < points_.size(); ++i) {
    if (preferred_ >= 0 && i != static_cast<std::size_t>(preferred_)) continue;
    char time[32];
    std::snprintf(time, sizeof time, "%.4g", points_[i].time_ms);
    text += (text.empty() ? "" : " or ") + describe(points_[i].configuration) + " in " + time + " ms with " +
            std::to_string(points_[i].workspace) + " bytes";
  }
  if (text.empty()) return "nothing can run it";
  return (is_planned() ? "as planned: " : "the fastest that fits: ") + text;
}

bool KnownKernel::permits(const Permission& permission, const Point& point,
                          std::int64_t workspace) const noexcept {
  return point.workspace <= workspace && point.workspace <= permission.limit &&
         (point.is_deterministic || !permission.deterministic_only) &&
         (point.is_legacy || !permission.legacy_only);
}

}  // namespace mucudnn::shim
