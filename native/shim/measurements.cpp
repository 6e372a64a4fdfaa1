#include "shim/measurements.hpp"

#include <algorithm>

#include "core/log.hpp"
#include "cudnn/combined_engine.hpp"
#include "shim/notes.hpp"

namespace mucudnn::shim {
namespace {

const char* name_of(Api api) { return api == Api::legacy ? "legacy" : "graph"; }

}  // namespace

std::vector<Listed> list(const Enumeration& enumeration) {
  std::vector<Listed> all;
  for (const Candidate& candidate : enumeration.candidates) {
    if (candidate.status != "CUDNN_STATUS_SUCCESS") continue;
    all.push_back({candidate.algorithm, static_cast<std::int64_t>(candidate.workspace), candidate.notes});
  }
  return all;
}

Measurements::Measurements(const Options& options, std::shared_ptr<const Library> library, Device& device,
                           std::map<std::string, std::string> identity)
    : options_(options),
      library_(std::move(library)),
      device_(device),
      journal_(options.cache.empty() ? "" : options.cache + ".journal", std::move(identity)) {}

std::optional<std::vector<Measured>> Measurements::of(Engine& engine, const Problem& problem, Pass pass,
                                                      Api api, bool may_measure) {
  const std::vector<std::int64_t> sizes = micro_batch_sizes(options_.policy, problem.mini_batch);
  Journal::Sizes& known = journal_.of(problem, pass);
  Journal::Sizes news;
  std::vector<Measured> measured;
  std::vector<Task> missing;
  const auto take = [&](std::int64_t size) {
    const Known& at = known.at(size);
    const std::vector<Listed>& all = at.candidates.at(name_of(api));
    if (measured.empty()) measured.reserve(sizes.size() * all.size());
    for (const Listed& candidate : all) {
      if (!is_allowed(candidate)) continue;
      const auto time = at.measured.find(candidate.algorithm);
      if (time == at.measured.end()) {
        missing.push_back({size, candidate.algorithm, static_cast<std::size_t>(candidate.workspace)});
      } else {
        measured.push_back({time->second, is_deterministic(candidate.notes), is_legacy(candidate.algorithm)});
      }
    }
  };
  for (const std::int64_t size : sizes) {
    Known& at = known[size];
    if (at.candidates.count(name_of(api)) == 0) {
      const Enumeration enumeration = engine.enumerate(problem.with_mini_batch(size), pass);
      at.is_complete = at.is_complete && enumeration.is_complete;
      at.candidates[name_of(api)] = list(enumeration);
      if (at.is_complete) news[size].candidates[name_of(api)] = at.candidates[name_of(api)];
    }
    take(size);
  }
  // What is too large for the memory is no reason to do without what is known.
  if (!missing.empty() && (measured.empty() || any_fits_memory(device_, problem, missing))) {
    if (!may_measure) return std::nullopt;
    measure(problem, pass, api, missing, known, news);
    measured.clear();
    for (const std::int64_t size : sizes) take(size);
  }
  if (may_measure) journal_.append(problem, pass, news);
  return measured;
}

const std::vector<Listed>& Measurements::whole(const Problem& problem, Pass pass, Api api) {
  return journal_.of(problem, pass).at(problem.mini_batch).candidates.at(name_of(api));
}

bool Measurements::is_allowed(const Listed& candidate) const {
  return candidate.workspace <= options_.workspace_limit.value_or(kNoLimit) &&
         (!options_.strict || is_strict(candidate.algorithm, candidate.notes));
}

void Measurements::measure(const Problem& problem, Pass pass, Api api, const std::vector<Task>& tasks,
                           Journal::Sizes& known, Journal::Sizes& news) {
  const std::string kernel = to_text(problem) + " " + mucudnn::name_of(pass);
  if (engine_ == nullptr)
    engine_ = make_combined_engine(std::make_shared<const Context>(library_, device_.stream()));
  log(LogLevel::info, "measuring " + std::to_string(tasks.size()) + " times for " + kernel + ", in about " +
                          std::to_string((memory_to_measure(device_, problem, tasks) >> 20) + 1) +
                          " MiB of memory");
  const Survey survey = measure_all(*engine_, device_, problem, pass, tasks);
  log(LogLevel::debug, "measured " + std::to_string(survey.measured.size()) + " times for " + kernel);
  for (const MicroConfiguration& one : survey.measured) {
    known[one.micro_batch].measured[one.algorithm] = one;
    news[one.micro_batch].measured[one.algorithm] = one;
  }
  for (const Task& task : survey.failed) {  // what says that it can run, and does not, is not tried again
    Known& at = known[task.micro_batch];
    auto& all = at.candidates[name_of(api)];
    all.erase(std::remove_if(all.begin(), all.end(),
                             [&](const Listed& one) { return one.algorithm == task.algorithm; }),
              all.end());
    if (at.is_complete) news[task.micro_batch].candidates[name_of(api)] = all;
  }
}

}  // namespace mucudnn::shim
