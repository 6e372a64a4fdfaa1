#include "shim/decisions/workspace_answers.hpp"

#include <algorithm>
#include <functional>
#include <new>

namespace mucudnn::shim {
namespace {

void lower(std::atomic<std::int64_t>& least, std::int64_t bytes) {
  std::int64_t known = least.load(std::memory_order_relaxed);
  while (bytes < known && !least.compare_exchange_weak(known, bytes)) {
  }
}

}  // namespace

EngineConfiguration::EngineConfiguration(const std::string& its_family, std::int64_t its_mini_batch,
                                         const std::string& engine)
    : mini_batch(its_mini_batch) {
  const std::string text = its_family + " " + std::to_string(mini_batch);
  const std::hash<std::string> hash;
  family = hash(its_family);
  convolution = hash(text);
  name = hash(text + " " + engine);
}

WorkspaceAnswers::Answers* WorkspaceAnswers::find_or_add(const EngineConfiguration& configured) {
  if (const auto entry = answers_.find(configured.name); entry != answers_.end()) return &entry->second;
  return answers_.size() < kMost ? &answers_[configured.name] : nullptr;
}

bool WorkspaceAnswers::make_room(const EngineConfiguration& configured) noexcept {
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    return find_or_add(configured) != nullptr;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void WorkspaceAnswers::note(const EngineConfiguration& configured, std::int64_t bytes,
                            std::int64_t own) noexcept {
  note(bytes, own);
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    Answers* const answers = find_or_add(configured);
    if (answers == nullptr) return;  // the answer is the library's own
    if (bytes < answers->least) {
      answers->least = bytes;
      revision_.fetch_add(1, std::memory_order_release);
    }
    if (bytes >= own) return;
    const auto shortfall = shortfalls_[configured.family].try_emplace(configured.mini_batch, bytes).first;
    shortfall->second = std::min(shortfall->second, bytes);
  } catch (const std::bad_alloc&) {
    if (bytes < own) lower(least_lost_, bytes);
    note_lost();
  }
}

void WorkspaceAnswers::note_lost() noexcept {
  is_incomplete_.store(true, std::memory_order_relaxed);
  revision_.fetch_add(1, std::memory_order_release);
}

void WorkspaceAnswers::note(std::int64_t bytes, std::int64_t own) noexcept {
  if (bytes < own) lower(least_shortfall_, bytes);
}

void WorkspaceAnswers::note_from_heuristics(const EngineConfiguration& configured,
                                            std::int64_t bytes) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = answers_.find(configured.name);
  if (entry == answers_.end()) return;  // restored plans use their own engine's workspace
  entry->second.most_from_heuristics = std::max(entry->second.most_from_heuristics, bytes);
}

std::int64_t WorkspaceAnswers::most_from_heuristics(const EngineConfiguration& configured) const noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = answers_.find(configured.name);
  return entry == answers_.end() ? 0 : entry->second.most_from_heuristics;
}

void WorkspaceAnswers::note_unused(const EngineConfiguration& configured, std::int64_t bytes) noexcept {
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (answers_.find(configured.name) == answers_.end()) return;
    auto& [least, most] = unused_.try_emplace(configured.convolution, bytes, bytes).first->second;
    least = std::min(least, bytes);
    most = std::max(most, bytes);
  } catch (const std::bad_alloc&) {
    // Out of memory: the next plan is divided as if this plan had never existed.
  }
}

void WorkspaceAnswers::note_used(const EngineConfiguration& configured) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  unused_.erase(configured.convolution);
}

std::pair<std::int64_t, std::int64_t> WorkspaceAnswers::unused(
    const EngineConfiguration& configured) const noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = unused_.find(configured.convolution);
  return entry == unused_.end() ? std::pair{kNoLimit, std::int64_t{0}} : entry->second;
}

std::int64_t WorkspaceAnswers::least(const EngineConfiguration& configured) const noexcept {
  std::int64_t least = least_of(configured);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto family = shortfalls_.find(configured.family);
  if (family == shortfalls_.end()) return least;
  for (auto at = family->second.lower_bound(configured.mini_batch); at != family->second.end(); ++at)
    least = std::min(least, at->second);
  return least;
}

std::int64_t WorkspaceAnswers::least_of(const EngineConfiguration& configured) const noexcept {
  const std::int64_t lost = least_lost_.load(std::memory_order_relaxed);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = answers_.find(configured.name);
  return entry == answers_.end() ? lost : std::min(lost, entry->second.least);
}

}  // namespace mucudnn::shim
