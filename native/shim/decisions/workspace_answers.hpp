// Remembers the workspace sizes that the program has read, because it may have allocated any of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/options.hpp"

namespace mucudnn::shim {

// An engine configuration whose workspace the program has read. It keeps hashes instead of the texts, which
// no query needs, to save memory.
struct EngineConfiguration {
  EngineConfiguration(const std::string& its_family, std::int64_t its_mini_batch, const std::string& engine);

  // The convolution without its mini-batch: a program may allocate for one mini-batch and run another.
  std::size_t family;
  std::int64_t mini_batch;
  std::size_t convolution;  // the family with its mini-batch
  std::size_t name;         // the convolution with the engine
};

class WorkspaceAnswers {
 public:
  // Makes room for the answers about a configuration. Returns false if there is no room. The program must
  // then get the library's own answers and plans, because we will not know later what it has read.
  bool make_room(const EngineConfiguration& configured) noexcept;

  // Notes that the program has read `bytes` as the workspace of an engine configuration, or of a plan made
  // from it. The library alone would have answered `own` bytes.
  void note(const EngineConfiguration& configured, std::int64_t bytes, std::int64_t own) noexcept;
  // Notes the same for a legacy algorithm. No name is needed: the caller passes the workspace's size with
  // every call.
  void note(std::int64_t bytes, std::int64_t own) noexcept;
  // Notes that memory ran out or the library failed while the program read a size, so that the configuration
  // is unknown. The answer was the library's own.
  void note_lost() noexcept;
  // Returns whether an answer was lost. Then a program may bring no more than the library's own size for any
  // plan.
  bool is_incomplete() const noexcept { return is_incomplete_.load(std::memory_order_relaxed); }

  // Notes that the program has read `bytes` as the workspace of a plan whose configuration came from cuDNN's
  // heuristics.
  void note_from_heuristics(const EngineConfiguration& configured, std::int64_t bytes) noexcept;
  // Returns the most bytes that note_from_heuristics() noted for this configuration; 0 if it noted nothing.
  std::int64_t most_from_heuristics(const EngineConfiguration& configured) const noexcept;

  // Returns the least bytes that a program may bring for a configuration; kNoLimit if it read nothing. This
  // is the least that it read for this configuration, or for a larger mini-batch of the family if our answer
  // was below the library's.
  std::int64_t least(const EngineConfiguration& configured) const noexcept;
  // Returns the least that the program read for this very configuration; kNoLimit if it read nothing.
  std::int64_t least_of(const EngineConfiguration& configured) const noexcept;
  // Returns a number that changes with every new least.
  std::uint64_t revision() const noexcept { return revision_.load(std::memory_order_acquire); }
  // Returns the least answer that was below the library's own; kNoLimit if there was none.
  std::int64_t least_shortfall() const noexcept { return least_shortfall_.load(std::memory_order_relaxed); }

  // Notes that the program destroyed a plan unexecuted after it had read `bytes` as its workspace: perhaps it
  // could not allocate them. note_used() takes that back, because a plan of the convolution was executed.
  void note_unused(const EngineConfiguration& configured, std::int64_t bytes) noexcept;
  void note_used(const EngineConfiguration& configured) noexcept;
  // Returns the least and the most bytes of the unused plans of a convolution and mini-batch, of any engine.
  // Returns kNoLimit and 0 if there are none.
  std::pair<std::int64_t, std::int64_t> unused(const EngineConfiguration& configured) const noexcept;

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  // The configurations that a process keeps, which take 5 MB. None is forgotten, because the program may
  // still bring what it read. The other tables only have entries for configurations in this table.
  static constexpr std::size_t kMost = 1 << 16;
  struct Answers {
    std::int64_t least = kNoLimit;
    std::int64_t most_from_heuristics = 0;
  };
  // Returns the answers about a configuration; null if there is no room. The calling thread must hold the
  // mutex. Throws std::bad_alloc.
  Answers* find_or_add(const EngineConfiguration& configured);

  mutable std::mutex mutex_;
  std::unordered_map<std::size_t, Answers> answers_;  // for each name
  // For each family and mini-batch, the least answer that was below the library's own.
  std::unordered_map<std::size_t, std::map<std::int64_t, std::int64_t>> shortfalls_;
  std::unordered_map<std::size_t, std::pair<std::int64_t, std::int64_t>> unused_;  // for each convolution
  std::atomic<std::int64_t> least_shortfall_{kNoLimit};
  std::atomic<std::uint64_t> revision_{1};
  std::atomic<bool> is_incomplete_{false};
  std::atomic<std::int64_t> least_lost_{kNoLimit};  // the least lost answer that was below the library's own
};

}  // namespace mucudnn::shim
