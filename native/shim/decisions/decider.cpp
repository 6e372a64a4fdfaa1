#include "shim/decisions/decider.hpp"

#include <algorithm>

#include "core/locked_file.hpp"
#include "core/log.hpp"
#include "cudnn/context.hpp"
#include "shim/decisions/sample_slices.hpp"

namespace mucudnn::shim {
namespace {

bool is_strict(const PreparedChoice& choice, const std::vector<std::string>& notes) {
  return std::none_of(notes.begin(), notes.end(), [](const auto& note) { return is_transform("", note); }) &&
         all_algorithms(choice, [](const std::string& name) { return !is_transform(name, ""); });
}

bool is_among(const std::vector<Slice>& refused, const MicroConfiguration& part) {
  return has_slice(refused, part.micro_batch, part.algorithm);
}

// Returns whether PyTorch itself runs a part: only mucudnn.torch can follow such a plan.
bool has_stock(const Configuration& configuration) {
  return std::any_of(configuration.begin(), configuration.end(),
                     [](const auto& part) { return part.algorithm == kStock; });
}

}  // namespace

Decider::Decider(const Options& options, std::shared_ptr<const Library> library, Journals& journals)
    : options_(options), library_(std::move(library)) {
  const bool is_host = library_->is_host();
  device_ =
      is_host ? make_host_device(library_->host_description(), library_->host_team) : make_cuda_device("");
  identity_ = {
      {"engine", is_host ? "host" : "cudnn"}, {"device", device_->name()}, {"library", library_->name()}};
  if (options_.mode == Mode::online) {
    Journal::Identity identity = identity_;
    identity["threads"] = std::to_string(options_.threads);
    const std::string path = options_.cache.empty() ? "" : options_.cache + ".journal";
    measurements_.emplace(options_, library_, *device_,
                          journals.try_emplace(identity, path, identity, options_.thorough).first->second);
  }
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
  bool is_ignored = false;
  for (PlanKernel& planned : plan.kernels) {
    if (planned.chosen.empty()) continue;
    if (options_.keeps_samples_apart(planned.kernel.pass)) {
      is_ignored = true;
      continue;
    }
    if (has_stock(planned.chosen)) {
      log(LogLevel::info, "left to the program, because its plan is STOCK: " + to_text(planned.kernel));
      continue;
    }
    plan_.emplace(planned.kernel, std::move(planned));
  }
  if (is_ignored) {
    log(LogLevel::warning, "MUCUDNN_BATCH_INVARIANT=1: only the filter gradients follow the plan '" +
                               options_.plan + "', since its other choices depend on the mini-batch");
  }
}

std::unique_ptr<Engine> Decider::make_engine(Api api, cudnnHandle_t handle) const {
  using GraphEngines = Engine::GraphEngines;
  return std::make_unique<Engine>(
      std::make_shared<const Context>(library_, handle), *device_,
      api == Api::legacy ? GraphEngines::for_fused_and_mixed : GraphEngines::for_all);
}

std::unique_ptr<const KnownKernel> Decider::decide(cudnnHandle_t handle, const Kernel& kernel, Api api,
                                                   bool may_measure, std::vector<Slice>& refused,
                                                   const Listed* own) {
  if (options_.keeps_samples_apart(kernel.pass)) {
    const auto engine = make_engine(api, handle);
    return divide_into_samples(*engine, kernel, api, refused);
  }
  const auto plan = plan_.find(kernel);
  const bool is_planned = plan != plan_.end();
  if (!is_planned && options_.mode != Mode::online) return nullptr;
  const auto engine = make_engine(api, handle);
  if (is_planned) return follow_plan(*engine, kernel, api, plan->second, refused);
  if (may_measure) {
    cudaStream_t stream = nullptr;
    library_->check(library_->cudnnGetStream(handle, &stream), "cudnnGetStream");
    may_measure = !device_->is_capturing(stream);
  }
  auto measured = measurements_->find_or_measure(*engine, kernel, api, may_measure, own);
  if (!measured) return nullptr;
  for (;;) {
    measured->erase(
        std::remove_if(measured->begin(), measured->end(),
                       [&](const Measured& candidate) { return is_among(refused, candidate.part); }),
        measured->end());
    MeasuredKernel times(kernel.problem.mini_batch, *measured);
    if (api == Api::graph) {
      const bool is_for_all = own == nullptr || options_.thorough;
      return std::make_unique<const KnownKernel>(kernel.pass, std::move(times),
                                                 is_for_all ? "" : own->algorithm);
    }
    const std::size_t before = refused.size();
    std::vector<PreparedChoice> choices = prepare_each(*engine, kernel, times.desirable(), refused);
    if (refused.size() > before) continue;  // the desirable set changes without the refused slices
    const Permissions permitted =
        permissions(kernel.pass, measurements_->undivided_algorithms(kernel, api), -1);
    return std::make_unique<const KnownKernel>(kernel.pass, std::move(choices), permitted,
                                               std::vector<std::size_t>());
  }
}

std::unique_ptr<const KnownKernel> Decider::divide_into_samples(Engine& engine, const Kernel& kernel, Api api,
                                                                std::vector<Slice>& refused) const {
  const Kernel plain = with_invariant_math(kernel);
  const auto samples = static_cast<std::size_t>(kernel.problem.mini_batch);
  std::vector<PreparedChoice> choices;
  for (const std::string& algorithm :
       algorithms_of_a_sample(engine, *library_, plain.with_mini_batch(1), options_)) {
    PreparedChoice choice = choice_of(Configuration(samples, MicroConfiguration{1, algorithm}));
    choice.is_deterministic = true;
    choices = prepare_each(engine, plain, {std::move(choice)}, refused);
    if (!choices.empty()) break;
  }
  Permissions permitted{};
  if (api == Api::legacy) {
    permitted = permissions(kernel.pass, runnable_algorithms(engine.enumerate(kernel)),
                            choices.empty() ? -1 : choices.front().workspace);
  }
  return std::make_unique<const KnownKernel>(kernel.pass, std::move(choices), permitted,
                                             std::vector<std::size_t>());
}

std::unique_ptr<const KnownKernel> Decider::follow_plan(Engine& engine, const Kernel& kernel, Api api,
                                                        const PlanKernel& plan,
                                                        std::vector<Slice>& refused) const {
  std::vector<PreparedChoice> choices;
  const auto take = [&](const Configuration& configuration) {
    if (!has_stock(configuration) && std::none_of(configuration.begin(), configuration.end(),
                                                  [&](const auto& part) { return is_among(refused, part); }))
      choices.push_back(choice_of(configuration));
  };
  std::for_each(plan.desirable.begin(), plan.desirable.end(), take);
  if (std::find(plan.desirable.begin(), plan.desirable.end(), plan.chosen) == plan.desirable.end())
    take(plan.chosen);
  if (!plan.groups.empty()) choices.push_back(choice_of({}, plan.groups));
  std::vector<PreparedChoice> usable;
  for (PreparedChoice& choice : prepare_each(engine, kernel, std::move(choices), refused)) {
    const std::vector<std::string> notes = choice.notes();
    if (options_.strict && !is_strict(choice, notes)) continue;
    choice.is_deterministic = std::all_of(notes.begin(), notes.end(), is_deterministic);
    usable.push_back(std::move(choice));
  }
  std::vector<std::size_t> preferred;
  std::int64_t planned = -1;
  const auto prefer = [&](auto is_planned) {
    const auto choice = std::find_if(usable.begin(), usable.end(), is_planned);
    if (choice == usable.end()) return;
    preferred.push_back(static_cast<std::size_t>(choice - usable.begin()));
    planned = std::max(planned, choice->workspace);
  };
  prefer([](const PreparedChoice& choice) { return !choice.groups.empty(); });
  prefer([&](const PreparedChoice& choice) { return choice.configuration == plan.chosen; });
  Permissions permitted{};
  if (api == Api::legacy)
    permitted = permissions(kernel.pass, runnable_algorithms(engine.enumerate(kernel)), planned);
  return std::make_unique<const KnownKernel>(kernel.pass, std::move(usable), permitted, std::move(preferred));
}

std::vector<PreparedChoice> Decider::prepare_each(Engine& engine, const Kernel& kernel,
                                                  std::vector<PreparedChoice> choices,
                                                  std::vector<Slice>& refused) const {
  std::vector<PreparedChoice> all;
  std::string failures;
  const auto fails = [&](const PreparedChoice& choice, const EngineError& error) {
    failures += (failures.empty() ? "" : "; ") + describe(choice) + ": " + error.what();
  };
  for (PreparedChoice& choice : choices) {
    try {
      make_ready(engine, kernel, choice);
      all.push_back(std::move(choice));
    } catch (const SliceRefused& refusal) {
      fails(choice, refusal);
      refused.push_back(refusal.slice());
    } catch (const EngineError& error) {
      fails(choice, error);
    }
  }
  if (!failures.empty()) log(LogLevel::warning, "not used for " + to_text(kernel) + ": " + failures);
  return all;
}

void Decider::make_ready(Engine& engine, const Kernel& kernel, PreparedChoice& choice) const {
  if (!choice.groups.empty()) {
    choice.channels =
        std::make_shared<const ChannelDivision>(engine, *device_, kernel, groups_of(choice.groups));
    choice.workspace = static_cast<std::int64_t>(choice.channels->workspace());
    return;
  }
  choice.division =
      std::make_shared<const Division>(engine, *device_, kernel, slices_of(choice.configuration));
  choice.workspace = static_cast<std::int64_t>(choice.division->workspace());
}

void Decider::make_ready(cudnnHandle_t handle, const Kernel& kernel, Api api, PreparedChoice& choice) const {
  if (choice.is_ready()) return;
  make_ready(*make_engine(api, handle), kernel, choice);
}

Decider::Permissions Decider::permissions(Pass pass, const std::vector<Listed>& undivided,
                                          std::int64_t planned) const {
  Permissions permissions;
  for (unsigned i = 0; const char* const name = legacy_algorithm(pass, i); ++i) {
    const auto own = std::find_if(undivided.begin(), undivided.end(),
                                  [&](const Listed& listed) { return listed.algorithm == name; });
    if (own == undivided.end()) continue;  // the caller's own call then reports the library's error
    permissions[i].deterministic_only = is_deterministic(own->notes);
    permissions[i].limit = options_.workspace_limit.value_or(planned < 0 ? own->workspace : planned);
  }
  return permissions;
}

std::optional<PreparedChoice> Decider::prepare_slices(cudnnHandle_t handle, const Kernel& kernel, Api api,
                                                      const std::string& algorithm, std::int64_t size) const {
  PreparedChoice choice;
  for (std::int64_t left = kernel.problem.mini_batch; left > 0; left -= size)
    choice.configuration.push_back({std::min(size, left), algorithm});
  try {
    make_ready(handle, kernel, api, choice);
  } catch (const EngineError&) {
    return std::nullopt;  // the algorithm cannot run slices of this size, or nothing can sum that many
  }
  return choice;
}

std::vector<std::string> Decider::replacements(cudnnHandle_t handle, const Kernel& kernel, Api api,
                                               std::int64_t workspace) const {
  const auto engine = make_engine(api, handle);
  std::vector<std::string> names;
  for (const Listed& candidate : runnable_algorithms(engine->enumerate(kernel))) {
    if ((!options_.strict || !is_transform(candidate.algorithm, candidate.notes)) &&
        is_deterministic(candidate.notes) && candidate.workspace <= workspace &&
        !is_tiled(candidate.algorithm))
      names.push_back(candidate.algorithm);
  }
  return names;
}

void Decider::restart_in_child() noexcept {
  if (measurements_) measurements_->restart_in_child();
}

}  // namespace mucudnn::shim
