#include "shim/decider.hpp"

#include <algorithm>
#include <set>

#include "core/locked_file.hpp"
#include "core/log.hpp"
#include "cudnn/combined_engine.hpp"
#include "cudnn/engine_name.hpp"
#include "cudnn/survey.hpp"

namespace mucudnn::shim {
namespace {

constexpr char kSuccess[] = "CUDNN_STATUS_SUCCESS";

bool is_deterministic(const Candidate& candidate) {
  return candidate.notes.find("deterministic") != std::string::npos;
}

const Candidate* find(const std::vector<Candidate>& candidates, const std::string& algorithm) {
  const auto found = std::find_if(candidates.begin(), candidates.end(),
                                  [&](const Candidate& c) { return c.algorithm == algorithm; });
  return found == candidates.end() ? nullptr : &*found;
}

// What the library says of an algorithm. Notes are an engine's: those of one with its knobs as nobody listed
// them are any other's of the same number.
const Candidate* find_like(const std::vector<Candidate>& candidates, const std::string& algorithm) {
  const Candidate* const listed = find(candidates, algorithm);
  const auto name = parse_engine_name(algorithm);
  if (listed != nullptr || !name) return listed;
  const auto found = std::find_if(candidates.begin(), candidates.end(), [&](const Candidate& candidate) {
    const auto other = parse_engine_name(candidate.algorithm);
    return other && other->engine == name->engine && candidate.status == kSuccess;
  });
  return found == candidates.end() ? nullptr : &*found;
}

std::unique_ptr<Engine> make_engine(Api api, std::shared_ptr<const Context> context) {
  return api == Api::legacy ? make_legacy_engine(std::move(context))
                            : make_combined_engine(std::move(context));
}

std::vector<Configuration> desirable_configurations(const std::vector<MicroConfiguration>& measured,
                                                    std::int64_t mini_batch,
                                                    std::optional<std::size_t> accumulator) {
  if (accumulator == 0) return desirable_set(measured, mini_batch);
  // Slices too many to be summed in place need an accumulator (filter_sum.hpp): those few enough are a family
  // of their own.
  std::vector<MicroConfiguration> in_place;
  std::copy_if(measured.begin(), measured.end(), std::back_inserter(in_place), [&](const auto& part) {
    return part.micro_batch * static_cast<std::int64_t>(kMostSlicesInPlace) >= mini_batch;
  });
  std::vector<Configuration> all;
  if (accumulator) all = desirable_set(measured, mini_batch);
  for (Configuration& configuration : desirable_set(std::move(in_place), mini_batch)) {
    if (std::find(all.begin(), all.end(), configuration) == all.end())
      all.push_back(std::move(configuration));
  }
  return all;
}

}  // namespace

Decider::Decider(const Options& options, std::shared_ptr<const Library> library)
    : options_(options), library_(std::move(library)) {
  const bool is_host = library_->is_host();
  device_ = is_host ? make_host_device(library_->describe_host()) : make_cuda_device("");
  identity_ = {
      {"engine", is_host ? "host" : "cudnn"}, {"device", device_->name()}, {"library", library_->name()}};
  if (options_.plan.empty()) return;
  try {
    read_plan();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw EngineError("the plan '" + options_.plan + "' is not followed: " + error.what());
  }
}

void Decider::read_plan() {
  Plan plan = parse_plan(read_file(options_.plan));
  for (const auto& [key, value] : identity_) {
    if (plan.header[key] == value) continue;
    throw std::invalid_argument("its " + key + " is '" + plan.header[key] + "', here it is '" + value + "'");
  }
  for (PlanKernel& kernel : plan.kernels) {
    plan_.emplace(std::pair(to_text(kernel.problem), kernel.pass), std::move(kernel));
  }
}

bool Decider::is_capturing(cudnnHandle_t handle) const {
  cudaStream_t stream = nullptr;
  library_->check(library_->cudnnGetStream(handle, &stream), "cudnnGetStream");
  return device_->is_capturing(stream);
}

bool Decider::is_allowed(const Candidate& candidate) const {
  if (!options_.strict) return true;
  // Legacy algorithms say it by their names, engines by their notes.
  const auto has = [&](const char* name, const char* note) {
    return candidate.algorithm.find(name) != std::string::npos ||
           candidate.notes.find(note) != std::string::npos;
  };
  return !has("FFT", "fft") && !has("WINOGRAD", "winograd");
}

const PlanKernel* Decider::planned(const Problem& problem, Pass pass) const {
  const auto found = plan_.find({to_text(problem), pass});
  return found == plan_.end() ? nullptr : &found->second;
}

std::unique_ptr<const KnownKernel> Decider::decide(cudnnHandle_t handle, const Problem& problem, Pass pass,
                                                   Api api, bool may_measure) {
  const PlanKernel* const plan = planned(problem, pass);
  if (plan == nullptr && options_.mode != Mode::online) return nullptr;
  std::vector<Configuration> configurations;
  std::set<std::int64_t> sizes{problem.mini_batch};
  if (plan != nullptr) {
    configurations = plan->desirable;
    if (std::find(configurations.begin(), configurations.end(), plan->chosen) == configurations.end()) {
      configurations.push_back(plan->chosen);
    }
    for (const Configuration& configuration : configurations) {
      for (const MicroConfiguration& part : configuration) sizes.insert(part.micro_batch);
    }
  } else {
    for (const std::int64_t size : micro_batch_sizes(options_.policy, problem.mini_batch)) sizes.insert(size);
  }
  const auto engine = make_engine(api, std::make_shared<const Context>(library_, handle));
  Candidates candidates;
  for (const std::int64_t size : sizes) {
    candidates[size] = engine->enumerate(problem.with_mini_batch(size), pass);
  }
  if (plan != nullptr)
    return make_known(*engine, problem, pass, api, candidates, configurations, &plan->chosen);
  const auto known = measured(problem, pass, candidates, may_measure && !is_capturing(handle));
  if (!known) return nullptr;
  const auto accumulator = accumulator_size(*device_, problem, pass, kMostSlicesInPlace + 1);
  configurations = desirable_configurations(*known, problem.mini_batch, accumulator);
  std::vector<MicroConfiguration> deterministic;
  std::copy_if(known->begin(), known->end(), std::back_inserter(deterministic), [&](const auto& part) {
    return is_deterministic(*find(candidates[part.micro_batch], part.algorithm));
  });
  if (deterministic.size() < known->size()) {
    const auto more = desirable_configurations(deterministic, problem.mini_batch, accumulator);
    configurations.insert(configurations.end(), more.begin(), more.end());
  }
  return make_known(*engine, problem, pass, api, candidates, configurations, nullptr);
}

std::optional<std::vector<MicroConfiguration>> Decider::measured(const Problem& problem, Pass pass,
                                                                 const Candidates& candidates,
                                                                 bool may_measure) {
  if (!journal_) {
    auto identity = identity_;
    identity["threads"] = std::to_string(options_.threads);
    journal_.emplace(options_.cache.empty() ? "" : options_.cache + ".journal", std::move(identity));
  }
  const auto limit = static_cast<std::size_t>(options_.workspace_limit.value_or(kNoLimit));
  std::vector<MicroConfiguration> all;
  std::vector<Task> missing;
  for (const auto& [size, of_size] : candidates) {
    const auto before = journal_->measured(problem.with_mini_batch(size), pass);
    for (const Candidate& candidate : of_size) {
      if (candidate.status != kSuccess || candidate.workspace > limit || !is_allowed(candidate)) continue;
      const auto known = std::find_if(before.begin(), before.end(),
                                      [&](const auto& one) { return one.algorithm == candidate.algorithm; });
      if (known != before.end()) {
        all.push_back(*known);
      } else {
        missing.push_back({size, candidate.algorithm, candidate.workspace});
      }
    }
  }
  if (missing.empty()) return all;
  if (!may_measure) return std::nullopt;
  if (measuring_ == nullptr)
    measuring_ = make_combined_engine(std::make_shared<const Context>(library_, device_->stream()));
  log(LogLevel::info, "measuring " + std::to_string(missing.size()) + " times for " + to_text(problem) + " " +
                          name_of(pass) + ", in about " +
                          std::to_string((memory_to_measure(*device_, problem, missing) >> 20) + 1) +
                          " MiB of memory");
  const auto fresh = measure_all(*measuring_, *device_, problem, pass, missing);
  log(LogLevel::debug,
      "measured " + std::to_string(fresh.size()) + " times for " + to_text(problem) + " " + name_of(pass));
  try {
    journal_->append(problem, pass, fresh);
  } catch (const std::runtime_error& error) {
    log(LogLevel::warning, std::string("what was measured is not kept: ") + error.what());
  }
  all.insert(all.end(), fresh.begin(), fresh.end());
  return all;
}

std::unique_ptr<const KnownKernel> Decider::make_known(Engine& engine, const Problem& problem, Pass pass,
                                                       Api api, const Candidates& candidates,
                                                       const std::vector<Configuration>& configurations,
                                                       const Configuration* preferred) {
  std::vector<Point> points;
  std::string failures;
  int preferred_index = -1;
  for (const Configuration& configuration : configurations) {
    bool deterministic = true;
    bool allowed = true;
    bool legacy = true;
    std::vector<Slice> slices;
    for (const MicroConfiguration& part : configuration) {
      const Candidate* const candidate = find_like(candidates.at(part.micro_batch), part.algorithm);
      deterministic = deterministic && candidate != nullptr && is_deterministic(*candidate);
      allowed = allowed && (candidate == nullptr || is_allowed(*candidate));
      legacy = legacy && !parse_engine_name(part.algorithm);
      slices.push_back({part.micro_batch, part.algorithm});
    }
    if (!allowed) continue;
    try {
      auto division = std::make_unique<const Division>(engine, *device_, problem, pass, slices);
      // The library's own word on the workspace, not the file's.
      const auto workspace = static_cast<std::int64_t>(division->workspace());
      if (preferred != nullptr && configuration == *preferred)
        preferred_index = static_cast<int>(points.size());
      points.push_back(
          {configuration, std::move(division), workspace, time_of(configuration), deterministic, legacy});
    } catch (const EngineError& error) {
      failures += (failures.empty() ? "" : "; ") + describe(configuration) + ": " + error.what();
    }
  }
  if (!failures.empty()) {
    log(LogLevel::warning, "not used for " + to_text(problem) + " " + name_of(pass) + ": " + failures);
  }
  const bool any_fits = std::any_of(points.begin(), points.end(), [&](const Point& point) {
    return point.workspace <= options_.workspace_limit.value_or(kNoLimit);
  });
  if (!points.empty() && !any_fits) {
    log(LogLevel::warning, "nothing fits the workspace limit, the program's own calls are made: " +
                               to_text(problem) + " " + name_of(pass));
  }
  KnownKernel::Permissions permissions;
  const std::vector<Candidate>& whole = candidates.at(problem.mini_batch);
  for (std::size_t i = 0; api == Api::legacy && i < whole.size(); ++i) {
    permissions[i].deterministic_only = is_deterministic(whole[i]) || whole[i].status != kSuccess;
    if (options_.workspace_limit) {
      permissions[i].limit = *options_.workspace_limit;
    } else if (preferred_index >= 0) {
      permissions[i].limit = points[static_cast<std::size_t>(preferred_index)].workspace;
    } else if (whole[i].status == kSuccess) {
      permissions[i].limit = static_cast<std::int64_t>(whole[i].workspace);
    }
  }
  return std::make_unique<const KnownKernel>(pass, std::move(points), permissions, preferred_index);
}

std::vector<std::unique_ptr<PreparedKernel>> Decider::runnable(cudnnHandle_t handle, const Problem& problem,
                                                               Pass pass, Api api, const std::string& first,
                                                               std::size_t workspace) const {
  const auto engine = make_engine(api, std::make_shared<const Context>(library_, handle));
  std::vector<Candidate> candidates = engine->enumerate(problem, pass);
  std::stable_sort(candidates.begin(), candidates.end(), [&](const Candidate& a, const Candidate& b) {
    return (a.algorithm == first) > (b.algorithm == first);
  });
  std::vector<std::unique_ptr<PreparedKernel>> kernels;
  for (const Candidate& candidate : candidates) {
    if (candidate.status != kSuccess || candidate.workspace > workspace) continue;
    const bool is_harmless = is_allowed(candidate) && is_deterministic(candidate);
    if (candidate.algorithm != first && !is_harmless) continue;
    kernels.push_back(engine->prepare(problem, pass, candidate.algorithm));
  }
  return kernels;
}

}  // namespace mucudnn::shim
