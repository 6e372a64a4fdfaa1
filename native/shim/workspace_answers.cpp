#include "shim/workspace_answers.hpp"

#include <algorithm>
#include <new>

namespace mucudnn::shim {
namespace {

std::string text_of(const EngineConfiguration& configured) {
  return configured.family + " " + std::to_string(configured.mini_batch) + " " + configured.engine;
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
