// The times of a kernel's algorithms at each micro-batch size, and the configurations that they make.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shim/point.hpp"

namespace mucudnn::shim {

struct Measured {
  MicroConfiguration part;
  bool is_deterministic = false;
  bool is_legacy = true;
};

class MeasuredKernel {
 public:
  // `accumulator`: what more slices than can be summed in place need beyond the algorithms' own workspace;
  // nothing where there is no such division (filter_sum.hpp).
  MeasuredKernel(std::int64_t mini_batch, std::optional<std::size_t> accumulator,
                 std::vector<Measured> measured);

  // Whether the mini-batch was measured undivided by this algorithm.
  bool has_whole(const std::string& algorithm) const;

  // All that is the fastest in some workspace, of all algorithms and of the deterministic ones alone; not
  // made ready.
  std::vector<Point> desirable() const;

  // The fastest of what is permitted within so many bytes, not made ready; nothing where nothing is.
  std::optional<Point> fastest(const Permission& permission, std::int64_t workspace) const;

 private:
  std::vector<Configuration> desirable(std::vector<MicroConfiguration> parts) const;
  bool is_in_place(const MicroConfiguration& part) const;
  Point point_of(Configuration configuration) const;

  std::int64_t mini_batch_;
  std::optional<std::size_t> accumulator_;
  std::vector<Measured> measured_;
};

}  // namespace mucudnn::shim
