#include "shim/decisions/known_kernel.hpp"

#include <algorithm>
#include <cstdio>

namespace mucudnn::shim {
namespace {

bool permits(const Permission& permission, const PreparedChoice& choice, std::int64_t workspace) {
  return choice.workspace <= workspace && choice.workspace <= permission.limit &&
         permission.allows(choice.is_deterministic, choice.is_legacy) &&
         (permission.may_group || choice.groups.empty());
}

}  // namespace

KnownKernel::KnownKernel(Pass pass, std::vector<PreparedChoice> choices, const Permissions& permissions,
                         std::vector<std::size_t> preferred)
    : pass_(pass),
      choices_(std::move(choices)),
      permissions_(permissions),
      preferred_(std::move(preferred)) {}

KnownKernel::KnownKernel(Pass pass, MeasuredKernel measured, std::string raced_for)
    : pass_(pass), measured_(std::move(measured)), raced_for_(std::move(raced_for)) {}

const PreparedChoice* KnownKernel::choice_for(unsigned algorithm, std::int64_t workspace,
                                              bool may_group) const noexcept {
  if (legacy_algorithm(pass_, algorithm) == nullptr) return nullptr;
  Permission permission = permissions_[algorithm];
  permission.may_group = may_group;
  return ready_choice(permission, workspace);
}

std::optional<PreparedChoice> KnownKernel::choice_within(const Permission& permission,
                                                         std::int64_t workspace) const {
  if (measured_) return measured_->fastest(permission, workspace);
  const PreparedChoice* const ready = ready_choice(permission, workspace);
  return ready == nullptr ? std::nullopt : std::optional(*ready);
}

const PreparedChoice* KnownKernel::ready_choice(const Permission& permission,
                                                std::int64_t workspace) const noexcept {
  for (const std::size_t index : preferred_) {
    if (permits(permission, choices_[index], workspace)) return &choices_[index];
  }
  const PreparedChoice* fastest = nullptr;
  for (const PreparedChoice& choice : choices_) {
    if (!permits(permission, choice, workspace)) continue;
    if (fastest == nullptr || choice.time_ms < fastest->time_ms) fastest = &choice;
  }
  return fastest;
}

bool KnownKernel::all_exceed(std::int64_t limit) const noexcept {
  return !choices_.empty() && !measured_ &&
         std::all_of(choices_.begin(), choices_.end(),
                     [&](const PreparedChoice& choice) { return choice.workspace > limit; });
}

std::optional<std::int64_t> KnownKernel::planned_workspace() const noexcept {
  if (!is_planned()) return std::nullopt;
  std::int64_t most = 0;
  for (const std::size_t index : preferred_) most = std::max(most, choices_[index].workspace);
  return most;
}

std::string KnownKernel::text() const {
  std::vector<PreparedChoice> choices = measured_ ? measured_->desirable() : choices_;
  if (is_planned()) {
    choices.clear();
    for (const std::size_t index : preferred_) choices.push_back(choices_[index]);
  }
  std::string text;
  for (const PreparedChoice& choice : choices) {
    char time[32] = "";  // a choice without measurements has no time
    if (choice.time_ms > 0) std::snprintf(time, sizeof time, " in %.4g ms", choice.time_ms);
    text += (text.empty() ? "" : ", or ") + describe(choice) + time + " with " +
            std::to_string(choice.workspace) + " bytes of workspace";
  }
  if (text.empty()) return "nothing can run it";
  return (is_planned() ? "as planned: " : "each execution takes the fastest that fits: ") + text;
}

}  // namespace mucudnn::shim
