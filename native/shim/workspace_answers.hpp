// The workspace sizes that the program has read, each of which it may have allocated.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>

#include "core/options.hpp"

namespace mucudnn::shim {

// Names what the program has read about: a configuration of an engine, for a convolution of `mini_batch`
// samples that is one of a `family` with other mini-batches.
struct Configured {
  std::string family;
  std::int64_t mini_batch = 0;
  std::string engine;
};

class WorkspaceAnswers {
 public:
  // The program has read `bytes` as the workspace of an engine configuration, or of a plan made of it, where
  // the library alone would have answered `own` bytes.
  void note(const Configured& configured, std::int64_t bytes, std::int64_t own) noexcept;
  // The same of a legacy algorithm, whose caller says at every execution how much it gives.
  void note(std::int64_t bytes, std::int64_t own) noexcept;

  // The least that a program may bring for a configuration, in bytes: the least that it read for this one or,
  // where the library alone would have answered more, for a larger mini-batch. kNoLimit where it read
  // nothing.
  std::int64_t least(const Configured& configured) const noexcept;
  // The least that it read for this very configuration.
  std::int64_t least_of(const Configured& configured) const noexcept;
  // Changes with every new least.
  std::uint64_t revision() const noexcept { return revision_.load(std::memory_order_acquire); }
  // The least that was read where the library alone would have answered more; kNoLimit where nothing was.
  std::int64_t least_shortfall() const noexcept { return least_shortfall_.load(std::memory_order_relaxed); }

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::int64_t> least_;                               // by text_of()
  std::unordered_map<std::string, std::map<std::int64_t, std::int64_t>> shortfalls_;  // by family, mini-batch
  std::atomic<std::int64_t> least_shortfall_{kNoLimit};
  std::atomic<std::uint64_t> revision_{1};
  std::atomic<bool> is_incomplete_{false};  // memory ran out: any answer may be missing
};

}  // namespace mucudnn::shim
