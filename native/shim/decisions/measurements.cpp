#include "shim/decisions/measurements.hpp"

#include <algorithm>
#include <ctime>

#include "core/log.hpp"
#include "cudnn/context.hpp"

namespace mucudnn::shim {

std::vector<Listed> runnable_algorithms(const Enumeration& enumeration) {
  std::vector<Listed> all;
  for (const Candidate& candidate : enumeration.candidates) {
    if (candidate.status != "CUDNN_STATUS_SUCCESS") continue;
    all.push_back({candidate.algorithm, static_cast<std::int64_t>(candidate.workspace), candidate.notes});
  }
  return all;
}

Measurements::Measurements(const Options& options, std::shared_ptr<const Library> library, Device& device,
                           Journal& journal)
    : options_(options), library_(std::move(library)), device_(device), journal_(journal) {}

std::optional<std::vector<Measured>> Measurements::find_or_measure(Engine& engine, const Kernel& kernel,
                                                                   Api api, bool may_measure,
                                                                   const Listed* own) {
  const std::vector<std::int64_t> sizes = micro_batch_sizes(options_.policy, kernel);
  const std::shared_ptr<Journal::Entry> held = journal_.entry_for(kernel);
  Journal::Entry& entry = *held;
  KernelTimes times = find(entry, sizes, api, own, may_measure);
  if (is_enough(entry, times, kernel, api, own))
    return std::move(find(entry, sizes, api, own, false).measured);
  if (!may_measure) return std::nullopt;
  const std::lock_guard<std::mutex> lock(entry.measuring);
  Journal::Sizes learned;
  const auto learn = [&](bool again = true) {
    journal_.add(entry, learned);
    times = find(entry, sizes, api, own, again);
  };
  learn();  // other threads may have measured while this one waited
  for (const std::int64_t size : times.unlisted) {
    const Enumeration enumeration = engine.enumerate(kernel.with_mini_batch(size));
    learned[size].candidates[name_of(api)] = runnable_algorithms(enumeration);
    learned[size].is_complete = enumeration.is_complete;
  }
  learn();
  if (!is_enough(entry, times, kernel, api, own))
    measure(engine.handle(), kernel, api, own, entry, times, learned);
  learn(false);
  journal_.append(kernel, learned);
  return std::move(times.measured);
}

std::vector<Listed> Measurements::undivided_algorithms(const Kernel& kernel, Api api) {
  return candidates_of(*journal_.entry_for(kernel), kernel.problem.mini_batch, api);
}

std::vector<Listed> Measurements::candidates_of(Journal::Entry& entry, std::int64_t size, Api api) {
  const std::lock_guard<Journal> lock(journal_);
  return entry.sizes.at(size).candidates.at(name_of(api));
}

KernelTimes Measurements::find(Journal::Entry& entry, const std::vector<std::int64_t>& sizes, Api api,
                               const Listed* own, bool again) {
  const std::lock_guard<Journal> lock(journal_);
  KernelTimes times;
  const auto now = static_cast<std::int64_t>(std::time(nullptr));
  const auto is_due = [&](const MeasuredPart& row) {
    if (options_.remeasure && row.measured_at < started_at_) return true;
    return row.busy_tries > 0 && now - row.measured_at >= seconds_to_next_try(row.busy_tries);
  };
  const auto take = [&](std::int64_t size, const Known& at, const Listed& candidate) {
    if (!is_allowed(candidate)) return;
    const auto measured = at.measured.find(candidate.algorithm);
    if (measured == at.measured.end() || (again && is_due(measured->second))) {
      times.missing.push_back(
          {{size, candidate.algorithm, candidate.workspace}, is_deterministic(candidate.notes)});
    } else {
      times.measured.push_back({measured->second.part, is_deterministic(candidate.notes)});
    }
  };
  for (const std::int64_t size : sizes) {
    const Known& at = entry.sizes[size];
    const auto all = at.candidates.find(name_of(api));
    if (all == at.candidates.end()) {
      times.unlisted.push_back(size);
      continue;
    }
    if (times.measured.empty()) times.measured.reserve(sizes.size() * all->second.size());
    for (const Listed& candidate : all->second) take(size, at, candidate);
    const bool is_listed =
        own == nullptr || size < sizes.back() ||
        std::any_of(
            all->second.begin(), all->second.end(),
            [&](const Listed& candidate) { return candidate.algorithm == own->algorithm; });
    if (!is_listed) take(size, at, *own);
  }
  return times;
}

// Missing measurements that do not fit the memory do not matter while there are others.
bool Measurements::is_enough(Journal::Entry& entry, const KernelTimes& times, const Kernel& kernel, Api api,
                             const Listed* own) {
  if (!times.unlisted.empty()) return false;
  if (times.missing.empty()) return true;
  const KernelRace race = race_of(entry, kernel, api, own);
  if (!race.next(times, [](const Task&) { return true; })) return true;
  if (times.measured.empty()) return false;
  const std::int64_t room = room_for_workspace(device_, kernel.problem, memory_cap(), protocol());
  return !race.next(times, [&](const Task& task) { return task.workspace <= room; });
}

KernelRace Measurements::race_of(Journal::Entry& entry, const Kernel& kernel, Api api, const Listed* own) {
  const std::int64_t size = kernel.problem.mini_batch;
  std::vector<Listed> callers;  // none in the graph API without an own engine: its race was run before
  if (own != nullptr) {
    callers.push_back(*own);
  } else if (api == Api::legacy) {
    callers = candidates_of(entry, size, api);
  }
  // The undivided time is that of the caller's own algorithm if it has one.
  Race race{size, {}, own == nullptr, std::nullopt, !library_->is_host()};
  if (library_->is_host()) race.bytes_per_ms = kHostBytesPerMs * options_.threads;
  return {race, own, permissions_of(callers, options_.workspace_limit), options_.thorough};
}

bool Measurements::is_allowed(const Listed& candidate) const {
  return candidate.workspace <= options_.workspace_limit.value_or(kNoLimit) &&
         (!options_.strict || !is_transform(candidate.algorithm, candidate.notes));
}

void Measurements::measure(cudnnHandle_t handle, const Kernel& kernel, Api api, const Listed* own,
                           Journal::Entry& entry, KernelTimes& times, Journal::Sizes& learned) {
  const KernelRace race = race_of(entry, kernel, api, own);
  const std::lock_guard<std::mutex> lock(timing_mutex_);
  cudaStream_t stream = nullptr;
  library_->check(library_->cudnnGetStream(handle, &stream), "cudnnGetStream");
  const std::string text = to_text(kernel);
  const std::size_t known = times.measured.size();
  device_.without_disturbing_captures([&] {
    if (engine_ == nullptr)
      engine_ = std::make_unique<Engine>(std::make_shared<const Context>(library_, device_.stream()), device_,
                                         Engine::GraphEngines::for_all);
    device_.wait(stream);  // the program's own work must not run while we time
    const std::size_t cap = memory_cap();
    const std::int64_t room = room_for_workspace(device_, kernel.problem, cap, protocol());
    std::int64_t most = 0, tasks = 0;
    for (const auto& [task, is_deterministic] : times.missing) {
      if (task.workspace > race.limit()) continue;
      ++tasks;
      if (task.workspace <= room) most = std::max(most, task.workspace);
    }
    const std::int64_t needed = static_cast<std::int64_t>(cap) - room + most;
    log(LogLevel::info, std::string("measuring ") + (options_.thorough ? "" : "up to ") +
                            std::to_string(tasks) + " times for " + text + ", in about " +
                            std::to_string((needed >> 20) + 1) + " MiB of memory");
    KernelTimer timer(*engine_, device_, kernel, static_cast<std::size_t>(most), cap, protocol());
    const auto fits = [&](const Task& task) { return task.workspace <= most; };
    const auto tries_before = [&](const Task& task) {
      const std::lock_guard<Journal> journal_lock(journal_);
      const auto& rows = entry.sizes[task.micro_batch].measured;
      const auto row = rows.find(task.algorithm);
      return row == rows.end() ? 0 : row->second.busy_tries;
    };
    while (const auto place = race.next(times, fits)) {
      const auto& [task, is_deterministic] = times.missing[*place];
      try {
        const Timing timing = race.measure(timer, times, *place);
        const MicroConfiguration part{task.micro_batch, task.algorithm, timing.time_ms, task.workspace};
        learned[task.micro_batch].measured[task.algorithm] = {part, timing.wall_ms, timing.cpu_ms,
                                                              timing.is_busy ? tries_before(task) + 1 : 0,
                                                              static_cast<std::int64_t>(std::time(nullptr))};
        times.measured.push_back({part, is_deterministic});
      } catch (const EngineError&) {
        // The algorithm failed although the library lists it: drop it, so that it is not tried again.
        auto& all = learned[task.micro_batch]
                        .candidates.try_emplace(name_of(api), candidates_of(entry, task.micro_batch, api))
                        .first->second;
        all.erase(std::remove_if(all.begin(), all.end(),
                                 [&](const Listed& listed) { return listed.algorithm == task.algorithm; }),
                  all.end());
      }
      times.missing.erase(times.missing.begin() + static_cast<std::ptrdiff_t>(*place));
    }
  });
  log(LogLevel::debug, "measured " + std::to_string(times.measured.size() - known) + " times for " + text);
}

}  // namespace mucudnn::shim
