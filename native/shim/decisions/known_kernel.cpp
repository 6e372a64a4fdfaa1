#include "shim/decisions/known_kernel.hpp"

#include <algorithm>
#include <cstdio>

namespace mucudnn::shim {
namespace {

bool permits(const Permission& permission, const PreparedChoice& choice, std::int64_t workspace) {
  return choice.workspace <= workspace && choice.workspace <= permission.limit &&
         permission.allows(choice.is_deterministic, choice.is_legacy);
}

}  // namespace

KnownKernel::KnownKernel(Pass pass, std::vector<PreparedChoice> choices, const Permissions& permissions,
                         int preferred)
    : pass_(pass), choices_(std::move(choices)), permissions_(permissions), preferred_(preferred) {}

KnownKernel::KnownKernel(Pass pass, MeasuredKernel measured) : pass_(pass), measured_(std::move(measured)) {}

const PreparedChoice* KnownKernel::choose(unsigned algorithm, std::int64_t workspace) const noexcept {
  if (legacy_algorithm(pass_, algorithm) == nullptr) return nullptr;
  return choose_ready(permissions_[algorithm], workspace);
}

std::optional<PreparedChoice> KnownKernel::choose(const Permission& permission,
                                                  std::int64_t workspace) const {
  if (measured_) return measured_->fastest(permission, workspace);
  const PreparedChoice* const ready = choose_ready(permission, workspace);
  return ready == nullptr ? std::nullopt : std::optional(*ready);
}

const PreparedChoice* KnownKernel::choose_ready(const Permission& permission,
                                                std::int64_t workspace) const noexcept {
  if (preferred_ >= 0 && permits(permission, choices_[static_cast<std::size_t>(preferred_)], workspace)) {
    return &choices_[static_cast<std::size_t>(preferred_)];
  }
  const PreparedChoice* fastest = nullptr;
  for (const PreparedChoice& choice : choices_) {
    if (!permits(permission, choice, workspace)) continue;
    if (fastest == nullptr || choice.time_ms < fastest->time_ms) fastest = &choice;
  }
  return fastest;
}

bool KnownKernel::all_exceed(std::int64_t limit) const noexcept {
  return !choices_.empty() &&
         std::all_of(choices_.begin(), choices_.end(),
                     [&](const PreparedChoice& choice) { return choice.workspace > limit; });
}

bool KnownKernel::is_callers_own(const PreparedChoice& choice, unsigned algorithm) const noexcept {
  return shim::is_callers_own(choice, legacy_algorithm(pass_, algorithm));
}

std::optional<std::int64_t> KnownKernel::planned_workspace() const noexcept {
  if (!is_planned()) return std::nullopt;
  return choices_[static_cast<std::size_t>(preferred_)].workspace;
}

std::string KnownKernel::text() const {
  std::vector<PreparedChoice> choices = measured_ ? measured_->desirable() : choices_;
  if (is_planned()) choices = {choices[static_cast<std::size_t>(preferred_)]};
  std::string text;
  for (const PreparedChoice& choice : choices) {
    char time[32];
    std::snprintf(time, sizeof time, "%.4g", choice.time_ms);
    text += (text.empty() ? "" : ", or ") + describe(choice.configuration) + " in " + time + " ms with " +
            std::to_string(choice.workspace) + " bytes of workspace";
  }
  if (text.empty()) return "nothing can run it";
  return (is_planned() ? "as planned: " : "each execution takes the fastest that fits: ") + text;
}

}  // namespace mucudnn::shim
