// A kernel whose configurations are known, made ready, and which of them a call runs by.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/plan.hpp"
#include "cudnn/division.hpp"
#include "cudnn/legacy_engine.hpp"

namespace mucudnn::shim {

// By which a program asks, and so what may take the place of its call: the graph API's engines compute
// whole graphs, and serve callers of the graph API alone.
enum class Api { legacy, graph };

// A configuration made ready. Never changed, and so shared by all threads.
struct Point {
  Configuration configuration;
  std::unique_ptr<const Division> division;
  std::int64_t workspace = 0;
  double time_ms = 0;
  bool is_deterministic = false;
  bool is_legacy = true;  // of legacy algorithms alone
};

// Whether a point is nothing but this algorithm.
bool is_own(const Point& point, const char* algorithm) noexcept;

class KnownKernel {
 public:
  // What a caller that asks for an algorithm permits.
  struct Permission {
    std::int64_t limit = -1;  // the most bytes of workspace; below 0: nothing but its own call
    bool deterministic_only = true;
    bool legacy_only = false;
  };
  using Permissions = std::array<Permission, kMostLegacyAlgorithms>;

  // `preferred` is the index of the point to take wherever it may be taken; -1: the fastest.
  KnownKernel(Pass pass, std::vector<Point> points, const Permissions& permissions, int preferred);

  bool is_planned() const noexcept { return preferred_ >= 0; }

  // What a call with this algorithm and so many bytes of workspace runs by; null where nothing is permitted
  // and fits.
  const Point* choose(unsigned algorithm, std::int64_t workspace) const noexcept;
  const Point* choose(const Permission& permission, std::int64_t workspace) const noexcept;

  // Whether a point is just what the caller asks for.
  bool is_own(const Point& point, unsigned algorithm) const noexcept;

  // Of the planned point, where there is one.
  std::optional<std::int64_t> planned_workspace() const noexcept;

  std::string text() const;  // what may be chosen from, for people

 private:
  bool permits(const Permission& permission, const Point& point, std::int64_t workspace) const noexcept;

  Pass pass_;
  std::vector<Point> points_;
  Permissions permissions_;
  int preferred_;
};

}  // namespace mucudnn::shim
