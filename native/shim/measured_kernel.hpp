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
  // `accumulation` is that of more slices than are summed in place.
  MeasuredKernel(std::int64_t mini_batch, const Accumulation& accumulation, std::vector<Measured> measured);

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
  Accumulation accumulation_;
  std::vector<Measured> measured_;
};

}  // namespace mucudnn::shim
