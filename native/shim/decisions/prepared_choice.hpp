// A configuration that may run a call, and the permission that a caller gives.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/plan.hpp"
#include "core/tiles.hpp"
#include "cudnn/dividing/division.hpp"

namespace mucudnn::shim {

// The API that a program uses. Engines of the graph API may replace only calls of the graph API, since they
// compute whole graphs.
enum class Api { legacy, graph };
inline const char* name_of(Api api) { return api == Api::legacy ? "legacy" : "graph"; }

// A configuration, or groups of channels in its place, with the division that runs it. All threads share a
// prepared choice, and none changes it.
struct PreparedChoice {
  Configuration configuration;
  std::shared_ptr<const Division> division;  // null until it is prepared
  std::int64_t workspace = 0;
  double time_ms = 0;
  bool is_deterministic = false;
  bool is_legacy = true;                              // true if all its algorithms are of the legacy API
  bool has_tiles = false;                             // true if one of its algorithms runs in tiles
  PlanGroups groups{};                                // if there are any, the configuration is empty
  std::shared_ptr<const ChannelDivision> channels{};  // runs the groups

  bool is_ready() const noexcept { return division != nullptr || channels != nullptr; }
  // Returns whether the choice divides the convolution: along the mini-batch, the channels or a sample.
  bool is_divided() const noexcept { return configuration.size() > 1 || !groups.empty() || has_tiles; }
  std::vector<std::string> notes() const { return channels ? channels->notes() : division->notes(); }
};

inline std::string describe(const PreparedChoice& choice) {
  return choice.groups.empty() ? describe(choice.configuration) : describe(choice.groups);
}

// Returns whether this is a legacy algorithm. Engines of the graph API have names that begin with "eng"
// (engine_name.hpp).
inline bool is_legacy(const std::string& algorithm) noexcept { return algorithm.rfind("eng", 0) != 0; }

// Returns whether an algorithm's notes (cudnn/engine.hpp) say that its results are always the same.
inline bool is_deterministic(const std::string& notes) {
  return notes.find("deterministic") != std::string::npos;
}

// Returns whether `test` holds for the algorithm of each part.
template <typename Test>
bool all_algorithms(const PreparedChoice& choice, Test test) {
  const auto all = [&](const Configuration& configuration) {
    return std::all_of(configuration.begin(), configuration.end(),
                       [&](const auto& part) { return test(part.algorithm); });
  };
  return all(choice.configuration) &&
         std::all_of(choice.groups.begin(), choice.groups.end(),
                     [&](const PlanGroup& group) { return all(group.configuration); });
}

// Makes a choice that is not prepared. Its workspace and its determinism are still unknown.
inline PreparedChoice choice_of(Configuration configuration, PlanGroups groups = {}) {
  PreparedChoice choice;
  choice.time_ms = groups.empty() ? time_of(configuration) : time_of(groups);
  choice.configuration = std::move(configuration);
  choice.groups = std::move(groups);
  choice.is_legacy = all_algorithms(choice, is_legacy);
  choice.has_tiles = !all_algorithms(choice, [](const std::string& name) { return !is_tiled(name); });
  return choice;
}

// Returns whether the choice is only this algorithm, undivided.
inline bool is_callers_own(const PreparedChoice& choice, const char* algorithm) noexcept {
  return choice.configuration.size() == 1 && choice.configuration.front().algorithm == algorithm;
}

inline std::vector<Slice> slices_of(const Configuration& configuration) {
  std::vector<Slice> slices;
  for (const MicroConfiguration& part : configuration) slices.push_back({part.micro_batch, part.algorithm});
  return slices;
}

inline std::vector<Group> groups_of(const PlanGroups& planned) {
  std::vector<Group> groups;
  for (const PlanGroup& group : planned)
    groups.push_back({group.channels, slices_of(group.configuration), group.of_inputs});
  return groups;
}

inline bool has_slice(const std::vector<Slice>& slices, std::int64_t micro_batch,
                      const std::string& algorithm) noexcept {
  return std::any_of(slices.begin(), slices.end(), [&](const Slice& slice) {
    return slice.micro_batch == micro_batch && slice.algorithm == algorithm;
  });
}

// The choices that may replace a caller's algorithm or engine.
struct Permission {
  std::int64_t limit = -1;  // the most bytes of workspace; below 0, only the caller's own call
  bool deterministic_only = true;
  bool legacy_only = false;
  // If a group of channels fails, the call is made again as a whole. So it must not read its output, for
  // example to add to it.
  bool may_group = false;

  bool allows(bool is_deterministic, bool is_legacy) const noexcept {
    return (is_deterministic || !deterministic_only) && (is_legacy || !legacy_only);
  }
};

}  // namespace mucudnn::shim
