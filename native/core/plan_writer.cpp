// Writes a plan as text.
#include <algorithm>
#include <charconv>
#include <utility>

#include "core/plan.hpp"
#include "core/plan_words.hpp"
#include "core/text.hpp"

namespace mucudnn {
namespace {

using namespace plan_words;

std::string text_of(double ms) {
  char time[32];
  return {time, std::to_chars(time, time + sizeof time, ms).ptr};
}

std::string text_of(const Configuration& configuration) {
  std::string text;
  for_each_run(configuration, [&](auto repeat, const MicroConfiguration& part) {
    check_algorithm(part.algorithm);
    text += joined(" ", repeat, "*", part.micro_batch, ":", part.algorithm, ":", text_of(part.time_ms), ":",
                   part.workspace);
  });
  return text;
}

std::string text_of(const MeasuredPart& measured) {
  const MicroConfiguration& part = measured.part;
  check_algorithm(part.algorithm);
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

}  // namespace

std::string to_text(const Plan& plan) {
  std::string text = joined(kMagic, kVersion, "\n");
  for (const auto& [key, value] : plan.header) {
    if (!is_word(key) || is_entry(key) || value.find('\n') != std::string::npos) {
      reject("the entry ", quoted(key), " cannot stand in a plan's header");
    }
    text += key + " " + value + "\n";
  }
  std::multimap<std::pair<std::string, Pass>, const PlanKernel*> kernels;
  for (const PlanKernel& planned : plan.kernels)
    kernels.emplace(std::pair(to_text(planned.kernel.problem), planned.kernel.pass), &planned);
  const auto add = [&](const std::string& entry, const auto& parts) {
    text += entry + text_of(parts) + "\n";
  };
  for (const auto& [key, planned] : kernels) {
    text += joined("kernel ", name_of(key.second), " ", planned->count, " ", key.first, "\n");
    const bool is_of_journal = !planned->candidates.empty() || !planned->measured.empty();
    if (!is_of_journal || !planned->chosen.empty()) add("choose", planned->chosen);
    if (!planned->groups.empty()) add("groups", planned->groups);
    for (const Share& share : planned->shares) add(joined("share ", share.count), share.configuration);
    std::vector<Configuration> options = planned->desirable;
    std::stable_sort(options.begin(), options.end(),
                     [](const auto& a, const auto& b) { return workspace_of(a) < workspace_of(b); });
    for (const Configuration& option : options) add("option", option);
    for (const MeasuredPart& measured : planned->measured) add("measured ", measured);
    for (const auto& [api, all] : planned->candidates)
      text += "candidates " + api + (all.empty() ? "" : " ") + to_text(all) + "\n";
  }
  text += joined("end ", plan.kernels.size(), "\n");
  parse_plan(text);  // a plan that cannot be written gives a text that cannot be read
  return text;
}

std::string to_text(const std::vector<Listed>& candidates) {
  std::string text;
  for (const Listed& candidate : candidates) {
    check_algorithm(candidate.algorithm);
    std::string notes = candidate.notes;
    std::replace(notes.begin(), notes.end(), ' ', ',');
    text += joined(text.empty() ? "" : " ", candidate.algorithm, ":", candidate.workspace, ":", notes);
  }
  return text;
}

}  // namespace mucudnn
