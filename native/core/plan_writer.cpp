// Writes a plan as text.
#include <algorithm>
#include <charconv>
#include <utility>

#include "core/plan_rules.hpp"

namespace mucudnn {
namespace {

using namespace plan_rules;

std::string text_of(double ms) {
  char time[32];
  return {time, std::to_chars(time, time + sizeof time, ms).ptr};
}

std::string text_of(const Configuration& configuration) {
  std::string text;
  for_each_run(configuration, [&](auto repeat, const MicroConfiguration& part) {
    text += joined(" ", repeat, "*", part.micro_batch, ":", part.algorithm, ":", text_of(part.time_ms), ":",
                   part.workspace);
  });
  return text;
}

std::string text_of(const MeasuredPart& measured) {
  const MicroConfiguration& part = measured.part;
  return joined(part.algorithm, ":", text_of(part.time_ms), ":", part.workspace, ":",
                text_of(measured.wall_ms), ":", text_of(measured.cpu_ms), ":", measured.busy_tries);
}

std::string text_of(const PlanGroups& groups) {
  std::string text;
  for_each_run(groups, [&](auto repeat, const PlanGroup& group) {
    text +=
        joined(" ", repeat, "*", group.of_inputs ? "in" : "", group.channels, text_of(group.configuration));
  });
  return text;
}

std::int64_t parts_in(const PlanGroups& groups) {
  std::int64_t parts = 0;
  for (const PlanGroup& group : groups) parts += static_cast<std::int64_t>(group.configuration.size());
  return parts;
}

}  // namespace

std::string to_text(const Plan& plan) {
  std::string text = joined(kMagic, kVersion, "\n");
  for (const auto& [key, value] : plan.header) {
    if (!is_word(key) || is_entry(key) || value.find('\n') != std::string::npos) {
      reject("the entry ", quoted(key), " cannot stand in a plan's header");
    }
    text += key + " " + value + "\n";
  }
  std::map<std::pair<std::string, Pass>, const PlanKernel*> kernels;
  for (const PlanKernel& planned : plan.kernels) {
    if (!kernels.emplace(std::pair(to_text(planned.kernel.problem), planned.kernel.pass), &planned).second) {
      reject("a kernel is in the plan twice: ", to_text(planned.kernel));
    }
  }
  Budget budget(kMostParts);
  const auto add = [&](const std::string& entry, const Configuration& configuration, const Whole& whole) {
    check(configuration, whole);
    budget.take(static_cast<std::int64_t>(configuration.size()));
    text += entry + text_of(configuration) + "\n";
  };
  for (const auto& [key, planned] : kernels) {
    const Whole mini_batch = mini_batch_of(*planned);
    check_pass(planned->kernel);
    text += joined("kernel ", name_of(planned->kernel.pass), " ", planned->count, " ", key.first, "\n");
    const bool is_of_journal = !planned->candidates.empty() || !planned->measured.empty();
    if (!is_of_journal || !planned->chosen.empty()) add("choose", planned->chosen, mini_batch);
    if (!planned->groups.empty()) {
      check(planned->groups, channels_of(*planned, planned->groups.front().of_inputs), mini_batch);
      budget.take(parts_in(planned->groups));
      text += "groups" + text_of(planned->groups) + "\n";
    }
    check_shares(*planned);
    for (const Share& share : planned->shares)
      add(joined("share ", share.count), share.configuration, mini_batch);
    std::vector<Configuration> options = planned->desirable;
    std::stable_sort(options.begin(), options.end(),
                     [](const auto& a, const auto& b) { return workspace_of(a) < workspace_of(b); });
    for (const Configuration& option : options) add("option", option, mini_batch);
    for (const MeasuredPart& measured : planned->measured) {
      check(measured, mini_batch);
      budget.take(1);
      text += "measured " + text_of(measured) + "\n";
    }
    for (const auto& [api, all] : planned->candidates) {
      text += "candidates " + api + (all.empty() ? "" : " ") + to_text(all) + "\n";
    }
  }
  return joined(text, "end ", plan.kernels.size(), "\n");
}

std::string to_text(const std::vector<Listed>& candidates) {
  std::string text;
  for (const Listed& candidate : candidates) {
    check(candidate);
    std::string notes = candidate.notes;
    std::replace(notes.begin(), notes.end(), ' ', ',');
    text += joined(text.empty() ? "" : " ", candidate.algorithm, ":", candidate.workspace, ":", notes);
  }
  return text;
}

}  // namespace mucudnn
