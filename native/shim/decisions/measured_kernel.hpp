// The times of a kernel's algorithms at each micro-batch size, and the configurations that they make.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shim/decisions/prepared_choice.hpp"

namespace mucudnn::shim {

struct Measured {
  MicroConfiguration part;
  bool is_deterministic = false;
};

class MeasuredKernel {
 public:
  MeasuredKernel(std::int64_t mini_batch, std::vector<Measured> measured)
      : mini_batch_(mini_batch), measured_(std::move(measured)) {}

  // Returns whether this algorithm was measured on the whole mini-batch, undivided.
  bool has_undivided(const std::string& algorithm) const;

  // Returns the desirable sets of all algorithms and of the deterministic algorithms, not prepared.
  std::vector<PreparedChoice> desirable() const;

  // Returns the fastest permitted choice within `workspace` bytes, not prepared; nothing if none fits.
  std::optional<PreparedChoice> fastest(const Permission& permission, std::int64_t workspace) const;

 private:
  PreparedChoice choose(Configuration configuration) const;

  std::int64_t mini_batch_;
  std::vector<Measured> measured_;
};

}  // namespace mucudnn::shim
