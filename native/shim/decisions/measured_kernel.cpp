#include "shim/decisions/measured_kernel.hpp"

#include <algorithm>

#include "core/reuse.hpp"

namespace mucudnn::shim {

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
  std::vector<Configuration> all = desirable_set(std::move(parts), mini_batch_);
  if (deterministic.size() < measured_.size()) {
    const std::vector<Configuration> more = desirable_set(std::move(deterministic), mini_batch_);
    all.insert(all.end(), more.begin(), more.end());
  }
  std::vector<PreparedChoice> choices;
  for (Configuration& configuration : all) choices.push_back(choose(std::move(configuration)));
  return choices;
}

std::optional<PreparedChoice> MeasuredKernel::fastest(const Permission& permission,
                                                      std::int64_t workspace) const {
  std::vector<const MicroConfiguration*> parts;
  for (const Measured& candidate : measured_) {
    if (candidate.part.workspace <= std::min(permission.limit, workspace) &&
        permission.allows(candidate.is_deterministic, shim::is_legacy(candidate.part.algorithm)))
      parts.push_back(&candidate.part);
  }
  Configuration best = reuse_workspace(parts, mini_batch_);
  if (best.empty()) return std::nullopt;
  return choose(std::move(best));
}

PreparedChoice MeasuredKernel::choose(Configuration configuration) const {
  PreparedChoice choice = choice_of(std::move(configuration));
  choice.workspace = workspace_of(choice.configuration);
  choice.is_deterministic =
      std::all_of(choice.configuration.begin(), choice.configuration.end(), [&](const auto& part) {
        return std::find_if(measured_.begin(), measured_.end(),
                            [&](const Measured& candidate) { return candidate.part == part; })
            ->is_deterministic;
      });
  return choice;
}

}  // namespace mucudnn::shim
