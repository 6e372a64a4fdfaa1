#include "shim/journal.hpp"

#include <unistd.h>

#include <ctime>

#include "core/locked_file.hpp"

namespace mucudnn::shim {
namespace {

constexpr std::string_view kStart = "mucudnn plan ";

// Up to the line "end N"; empty where the document is cut off.
std::string_view whole(std::string_view document) {
  const std::size_t end = document.find("\nend ");
  if (end == std::string_view::npos) return {};
  const std::size_t newline = document.find('\n', end + 1);
  return newline == std::string_view::npos ? std::string_view{} : document.substr(0, newline + 1);
}

}  // namespace

Journal::Journal(std::string path, std::map<std::string, std::string> identity)
    : path_(std::move(path)), identity_(std::move(identity)) {
  if (!path_.empty() && ::access(path_.c_str(), F_OK) == 0) read();
}

void Journal::read() {
  const std::string text = read_file(path_);
  std::size_t next = text.find(kStart);
  while (next != std::string::npos) {
    const std::size_t start = next;
    next = text.find(kStart, start + kStart.size());
    const std::string_view document = whole(std::string_view(text).substr(start, next - start));
    try {
      take(parse_plan(document));
    } catch (const std::invalid_argument&) {
      // Cut off, damaged or of a newer version: this one counts as never written.
    }
  }
}

void Journal::take(const Plan& plan) {
  for (const auto& [key, value] : identity_) {
    const auto found = plan.header.find(key);
    if (found == plan.header.end() || found->second != value) return;
  }
  for (const PlanKernel& kernel : plan.kernels) {
    auto& of_kernel = measured_[{to_text(kernel.problem), kernel.pass}];
    for (const Configuration& option : kernel.desirable) {
      if (option.size() == 1) of_kernel.insert_or_assign(option.front().algorithm, option.front());
    }
  }
}

std::vector<MicroConfiguration> Journal::measured(const Problem& problem, Pass pass) const {
  std::vector<MicroConfiguration> all;
  const auto found = measured_.find({to_text(problem), pass});
  if (found == measured_.end()) return all;
  for (const auto& [algorithm, one] : found->second) all.push_back(one);
  return all;
}

void Journal::append(const Problem& problem, Pass pass, const std::vector<MicroConfiguration>& measured) {
  for (const MicroConfiguration& one : measured) {
    const std::string key = to_text(problem.with_mini_batch(one.micro_batch));
    measured_[{key, pass}].insert_or_assign(one.algorithm, one);
  }
  if (path_.empty() || measured.empty()) return;
  std::map<std::int64_t, PlanKernel> kernels;
  for (const MicroConfiguration& one : measured) {
    PlanKernel& kernel = kernels[one.micro_batch];
    kernel.problem = problem.with_mini_batch(one.micro_batch);
    kernel.pass = pass;
    kernel.desirable.push_back({one});
    if (kernel.chosen.empty() || one.time_ms < time_of(kernel.chosen)) kernel.chosen = {one};
  }
  Plan plan{identity_, {}};
  plan.header["measured_at"] = std::to_string(std::time(nullptr));
  for (auto& [size, kernel] : kernels) plan.kernels.push_back(std::move(kernel));
  LockedFile(path_).append(to_text(plan));
}

}  // namespace mucudnn::shim
