// A configuration that a call may run by, and what a caller permits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/plan.hpp"
#include "cudnn/division.hpp"

namespace mucudnn::shim {

// By which a program asks, and so what may take the place of its call: the graph API's engines compute
// whole graphs, and serve callers of the graph API alone.
enum class Api { legacy, graph };

// Never changed once it is ready, and so shared by all threads.
struct Point {
  Configuration configuration;
  std::shared_ptr<const Division> division;  // null where it is not made ready
  std::int64_t workspace = 0;
  double time_ms = 0;
  bool is_deterministic = false;
  bool is_legacy = true;  // of legacy algorithms alone
};

// Legacy algorithms have the names of their enumerators, in capitals; engines are named as in
// engine_name.hpp.
inline bool is_legacy(const std::string& algorithm) noexcept { return algorithm.rfind("eng", 0) != 0; }

// Whether a point is nothing but this algorithm.
inline bool is_own(const Point& point, const char* algorithm) noexcept {
  return point.configuration.size() == 1 && point.configuration.front().algorithm == algorithm;
}

inline bool has_slice(const std::vector<Slice>& slices, std::int64_t micro_batch,
                      const std::string& algorithm) noexcept {
  return std::any_of(slices.begin(), slices.end(), [&](const Slice& slice) {
    return slice.micro_batch == micro_batch && slice.algorithm == algorithm;
  });
}

// What a caller permits that asks for an algorithm or an engine.
struct Permission {
  std::int64_t limit = -1;  // the most bytes of workspace; below 0: nothing but its own call
  bool deterministic_only = true;
  bool legacy_only = false;

  bool allows(bool is_deterministic, bool is_legacy) const noexcept {
    return (is_deterministic || !deterministic_only) && (is_legacy || !legacy_only);
  }
};

}  // namespace mucudnn::shim
