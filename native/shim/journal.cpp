#include "shim/journal.hpp"

#include <unistd.h>

#include <ctime>

#include "core/journal.hpp"
#include "core/locked_file.hpp"
#include "core/log.hpp"

namespace mucudnn::shim {

Journal::Journal(std::string path, std::map<std::string, std::string> identity)
    : path_(std::move(path)), identity_(std::move(identity)) {
  if (!path_.empty() && ::access(path_.c_str(), F_OK) == 0) read();
}

void Journal::read() {
  for (const Plan& plan : parse_journal(read_file(path_))) take(plan);
}

void Journal::take(const Plan& plan) {
  for (const auto& [key, value] : identity_) {
    const auto found = plan.header.find(key);
    if (found == plan.header.end() || found->second != value) return;
  }
  for (const PlanKernel& kernel : plan.kernels) {
    Known& known = of(kernel.problem, kernel.pass)[kernel.problem.mini_batch];
    for (const Configuration& option : kernel.desirable) {
      if (option.size() == 1) known.measured.insert_or_assign(option.front().algorithm, option.front());
    }
    for (const auto& [api, all] : kernel.candidates) known.candidates.insert_or_assign(api, all);
  }
}

Journal::Sizes& Journal::of(const Problem& problem, Pass pass) {
  return kernels_[{to_text(problem.with_mini_batch(1)), pass}];
}

void Journal::append(const Problem& problem, Pass pass, const Sizes& news) const {
  if (path_.empty() || news.empty()) return;
  Plan plan{identity_, {}};
  plan.header["measured_at"] = std::to_string(std::time(nullptr));
  for (const auto& [size, known] : news) {
    PlanKernel& kernel = plan.kernels.emplace_back();
    kernel.problem = problem.with_mini_batch(size);
    kernel.pass = pass;
    kernel.candidates = known.candidates;
    for (const auto& [algorithm, one] : known.measured) {
      kernel.desirable.push_back({one});
      if (kernel.chosen.empty() || one.time_ms < time_of(kernel.chosen)) kernel.chosen = {one};
    }
  }
  try {
    LockedFile(path_).append(to_text(plan));
  } catch (const std::runtime_error& error) {
    log(LogLevel::warning, std::string("what was measured is not kept: ") + error.what());
  }
}

}  // namespace mucudnn::shim
