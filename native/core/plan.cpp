#include "core/plan.hpp"

#include <algorithm>

#include "core/text.hpp"

namespace mucudnn {

std::int64_t seconds_to_next_try(int busy_tries) {
  constexpr int kMostDoublings = 15;  // three weeks
  return std::int64_t{60} << std::min(busy_tries, kMostDoublings);
}

double time_of(const Configuration& configuration) {
  double sum = 0;
  for (const MicroConfiguration& part : configuration) sum += part.time_ms;
  return sum;
}

std::int64_t workspace_of(const Configuration& configuration) {
  std::int64_t most = 0;
  for (const MicroConfiguration& part : configuration) most = std::max(most, part.workspace);
  return most;
}

std::string describe(const Configuration& configuration) {
  std::string text;
  for_each_run(configuration, [&](auto repeat, const MicroConfiguration& part) {
    text += joined(text.empty() ? "" : " + ", repeat, "*", part.micro_batch, " ", part.algorithm);
  });
  return text;
}

double time_of(const PlanGroups& groups) {
  double sum = 0;
  for (const PlanGroup& group : groups) sum += time_of(group.configuration);
  return sum;
}

std::string describe(const PlanGroups& groups) {
  std::string text;
  for_each_run(groups, [&](auto repeat, const PlanGroup& group) {
    text += joined(text.empty() ? "" : " + ", repeat, "*", group.channels,
                   group.of_inputs ? " inputs (" : " (", describe(group.configuration), ")");
  });
  return text;
}

}  // namespace mucudnn
