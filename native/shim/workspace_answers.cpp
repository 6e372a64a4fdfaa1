#include "shim/workspace_answers.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace mucudnn::shim {
namespace {

template <typename Map, typename Key>
bool keep_least(Map& map, const Key& key, std::int64_t bytes) {
  const auto [found, is_new] = map.try_emplace(key, bytes);
  if (!is_new && found->second <= bytes) return false;
  found->second = bytes;
  return true;
}

void lower(std::atomic<std::int64_t>& least, std::int64_t bytes) {
  std::int64_t known = least.load(std::memory_order_relaxed);
  while (bytes < known && !least.compare_exchange_weak(known, bytes)) {
  }
}

}  // namespace

EngineConfiguration::EngineConfiguration(std::string of_family, std::int64_t of_mini_batch,
                                         const std::string& engine)
    : family(std::move(of_family)),
      mini_batch(of_mini_batch),
      convolution(family + " " + std::to_string(mini_batch)),
      name(convolution + " " + engine) {}

void WorkspaceAnswers::note(const EngineConfiguration& configured, std::int64_t bytes,
                            std::int64_t own) noexcept {
  note(bytes, own);
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (keep_least(least_, configured.name, bytes)) revision_.fetch_add(1, std::memory_order_release);
    if (bytes < own) keep_least(shortfalls_[configured.family], configured.mini_batch, bytes);
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
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::int64_t& most = most_from_heuristics_[configured.name];
    most = std::max(most, bytes);
  } catch (const std::bad_alloc&) {
    // Out of memory: restored plans use their own engine's workspace.
  }
}

std::int64_t WorkspaceAnswers::most_from_heuristics(const EngineConfiguration& configured) const noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = most_from_heuristics_.find(configured.name);
  return found == most_from_heuristics_.end() ? 0 : found->second;
}

void WorkspaceAnswers::note_unused(const EngineConfiguration& configured, std::int64_t bytes) noexcept {
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& [least, most] = unused_.try_emplace(configured.convolution, bytes, bytes).first->second;
    least = std::min(least, bytes);
    most = std::max(most, bytes);
  } catch (const std::bad_alloc&) {
    // Out of memory: the next plan is divided as if this one had never been.
  }
}

void WorkspaceAnswers::note_used(const EngineConfiguration& configured) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  unused_.erase(configured.convolution);
}

std::pair<std::int64_t, std::int64_t> WorkspaceAnswers::unused(
    const EngineConfiguration& configured) const noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = unused_.find(configured.convolution);
  return found == unused_.end() ? std::pair{kNoLimit, std::int64_t{0}} : found->second;
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
  const auto found = least_.find(configured.name);
  return found == least_.end() ? lost : std::min(lost, found->second);
}

}  // namespace mucudnn::shim
