#include "shim/workspace_answers.hpp"

#include <algorithm>
#include <new>

namespace mucudnn::shim {
namespace {

std::string text_of(const EngineConfiguration& configured) {
  return configured.family + " " + std::to_string(configured.mini_batch) + " " + configured.engine;
}

std::string convolution_of(const EngineConfiguration& configured) {
  return configured.family + " " + std::to_string(configured.mini_batch);
}

template <typename Map, typename Key>
bool keep_least(Map& map, const Key& key, std::int64_t bytes) {
  const auto [found, is_new] = map.try_emplace(key, bytes);
  if (!is_new && found->second <= bytes) return false;
  found->second = bytes;
  return true;
}

}  // namespace

void WorkspaceAnswers::note(const EngineConfiguration& configured, std::int64_t bytes,
                            std::int64_t own) noexcept {
  note(bytes, own);
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (keep_least(least_, text_of(configured), bytes)) revision_.fetch_add(1, std::memory_order_release);
    if (bytes < own) keep_least(shortfalls_[configured.family], configured.mini_batch, bytes);
  } catch (const std::bad_alloc&) {
    is_incomplete_ = true;
    revision_.fetch_add(1, std::memory_order_release);
  }
}

void WorkspaceAnswers::note(std::int64_t bytes, std::int64_t own) noexcept {
  if (bytes >= own) return;
  std::int64_t least = least_shortfall();
  while (bytes < least && !least_shortfall_.compare_exchange_weak(least, bytes)) {
  }
}

void WorkspaceAnswers::note_from_heuristics(const EngineConfiguration& configured,
                                            std::int64_t bytes) noexcept {
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::int64_t& most = most_from_heuristics_[text_of(configured)];
    most = std::max(most, bytes);
  } catch (const std::bad_alloc&) {
    // Out of memory: restored plans use their own engine's workspace.
  }
}

std::int64_t WorkspaceAnswers::most_from_heuristics(const EngineConfiguration& configured) const noexcept {
  try {
    const std::string text = text_of(configured);
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = most_from_heuristics_.find(text);
    return found == most_from_heuristics_.end() ? 0 : found->second;
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

void WorkspaceAnswers::note_unused(const EngineConfiguration& configured, std::int64_t bytes) noexcept {
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& [least, most] = unused_.try_emplace(convolution_of(configured), bytes, bytes).first->second;
    least = std::min(least, bytes);
    most = std::max(most, bytes);
  } catch (const std::bad_alloc&) {
    // Out of memory: the next plan is divided as if this one had never been.
  }
}

void WorkspaceAnswers::note_used(const EngineConfiguration& configured) noexcept {
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    unused_.erase(convolution_of(configured));
  } catch (const std::bad_alloc&) {
    // Out of memory: later plans of this convolution may be divided further than they need.
  }
}

std::pair<std::int64_t, std::int64_t> WorkspaceAnswers::unused(
    const EngineConfiguration& configured) const noexcept {
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = unused_.find(convolution_of(configured));
    if (found != unused_.end()) return found->second;
  } catch (const std::bad_alloc&) {
    // Out of memory: as if there were none.
  }
  return {kNoLimit, 0};
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
  if (is_incomplete_) return 0;
  try {
    const std::string text = text_of(configured);
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = least_.find(text);
    return found == least_.end() ? kNoLimit : found->second;
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

}  // namespace mucudnn::shim
