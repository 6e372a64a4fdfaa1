// A lock-free count of how the convolutions of the process ran.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "cudnn/recognise.hpp"

namespace mucudnn::shim {

class Tally {
 public:
  void divided(std::int64_t workspace, bool has_tiles) noexcept {
    count(divided_, workspace);
    if (has_tiles) count(tiled_);
  }
  void exchanged(std::int64_t workspace) noexcept { count(exchanged_, workspace); }
  void rescued() noexcept { count(rescued_); }
  void lacked_memory() noexcept { count(lacking_); }
  void passed(Obstacle reason) noexcept;
  // Each returns whether this is the first call for the reason, so that the user is warned once.
  bool note_above_limit(Obstacle reason) noexcept;
  bool note_broken_promise(Obstacle reason) noexcept;

  // Returns "12 of 14 convolutions divided, 2 passed through (reason)"; empty if there were none.
  std::string text() const;
  // Returns "12 of 14 convolutions divided, workspace at most 48 MiB"; empty if there were none.
  std::string summary() const;
  void reset() noexcept;

 private:
  using Counter = std::atomic<std::int64_t>;
  struct Reason {
    std::atomic<const char*> text{nullptr};
    Counter calls{0};
    std::atomic<bool> is_above_limit{false}, breaks_promise{false};
  };

  // Compares reasons by address. Returns null if other reasons have taken all slots.
  Reason* slot_of(Obstacle reason) noexcept;
  static void count(Counter& counter) noexcept { counter.fetch_add(1, std::memory_order_relaxed); }
  void count(Counter& counter, std::int64_t workspace) noexcept;
  std::int64_t passed_through() const noexcept;
  // Returns the counts that both texts begin with; empty if there were no convolutions.
  std::string beginning() const;

  Counter divided_{0};
  Counter tiled_{0};                // divided calls with an algorithm in tiles
  Counter exchanged_{0};            // undivided, but by another algorithm than the caller's
  Counter rescued_{0};              // in slices, because the caller's workspace was too small
  Counter lacking_{0};              // in slices, because the library found no memory
  Counter most_workspace_{0};       // the most bytes that a divided or an exchanged call used
  std::array<Reason, 64> reasons_;  // more slots than the code has reasons
};

}  // namespace mucudnn::shim
