#include "shim/decisions/measured_kernel.hpp"

#include <algorithm>

#include "core/reuse.hpp"

namespace mucudnn::shim {
MeasuredKernel::MeasuredKernel(std::int64_t mini_batch, const Accumulation& accumulation,
                               std::vector<Measured> measured)
    : mini_batch_(mini_batch), accumulation_(accumulation), measured_(std::move(measured)) {}

bool MeasuredKernel::has_undivided(const std::string& algorithm) const {
  return std::any_of(measured_.begin(), measured_.end(), [&](const Measured& candidate) {
    return candidate.part.micro_batch == mini_batch_ && candidate.part.algorithm == algorithm;
  });
}

std::vector<PreparedChoice> MeasuredKernel::desirable() const {
  std::vector<MicroConfiguration> parts, deterministic;
  for (const Measured& candidate : measured_) {
    parts.push_back(candidate.part);
    if (candidate.is_deterministic) deterministic.push_back(candidate.part);
  }
  std::vector<Configuration> all = desirable(std::move(parts));
  if (deterministic.size() < measured_.size()) {
    const std::vector<Configuration> more = desirable(std::move(deterministic));
    all.insert(all.end(), more.begin(), more.end());
  }
  std::vector<PreparedChoice> choices;
  for (Configuration& configuration : all) choices.push_back(choice_of(std::move(configuration)));
  return choices;
}

std::vector<Configuration> MeasuredKernel::desirable(std::vector<MicroConfiguration> parts) const {
  if (accumulation_.size == 0) return desirable_set(std::move(parts), mini_batch_);
  // Configurations of few slices are summed in place and need no accumulator. They form a desirable set of
  // their own.
  std::vector<MicroConfiguration> in_place;
  std::copy_if(parts.begin(), parts.end(), std::back_inserter(in_place),
               [&](const MicroConfiguration& part) { return is_in_place(part); });
  std::vector<Configuration> all;
  if (accumulation_.size) all = desirable_set(std::move(parts), mini_batch_);
  for (Configuration& configuration : desirable_set(std::move(in_place), mini_batch_)) {
    if (std::find(all.begin(), all.end(), configuration) == all.end())
      all.push_back(std::move(configuration));
  }
  return all;
}

std::optional<PreparedChoice> MeasuredKernel::fastest(const Permission& permission,
                                                      std::int64_t workspace) const {
  const std::int64_t limit = std::min(permission.limit, workspace);
  const auto within = [&](std::int64_t most, bool in_place) {
    std::vector<const MicroConfiguration*> parts;
    for (const Measured& candidate : measured_) {
      if (candidate.part.workspace <= most &&
          permission.allows(candidate.is_deterministic, shim::is_legacy(candidate.part.algorithm)) &&
          (!in_place || is_in_place(candidate.part))) {
        parts.push_back(&candidate.part);
      }
    }
    return reuse_workspace(parts, mini_batch_);
  };
  Configuration best;
  if (accumulation_.size) best = within(limit - static_cast<std::int64_t>(*accumulation_.size), false);
  if (accumulation_.size != 0) {
    Configuration other = within(limit, true);
    if (best.empty() || (!other.empty() && time_of(other) <= time_of(best))) best = std::move(other);
  }
  if (best.empty()) return std::nullopt;
  return choice_of(std::move(best));
}

bool MeasuredKernel::is_in_place(const MicroConfiguration& part) const {
  const auto slices = static_cast<std::size_t>((mini_batch_ + part.micro_batch - 1) / part.micro_batch);
  return slices <= accumulation_.most_in_place;
}

PreparedChoice MeasuredKernel::choice_of(Configuration configuration) const {
  PreparedChoice choice;
  choice.is_deterministic = true;
  for (const MicroConfiguration& part : configuration) {
    const auto its = std::find_if(measured_.begin(), measured_.end(),
                                  [&](const Measured& candidate) { return candidate.part == part; });
    choice.is_deterministic = choice.is_deterministic && its->is_deterministic;
    choice.is_legacy = choice.is_legacy && shim::is_legacy(part.algorithm);
    choice.has_tiles = choice.has_tiles || is_tiled(part.algorithm);
  }
  choice.time_ms = time_of(configuration);
  choice.workspace = workspace_of(configuration);
  if (configuration.size() > accumulation_.most_in_place)
    choice.workspace += static_cast<std::int64_t>(accumulation_.size.value_or(0));
  choice.configuration = std::move(configuration);
  return choice;
}

}  // namespace mucudnn::shim
