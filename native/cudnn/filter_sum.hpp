// The sum of the slices' filter gradients, in place or in fp32 (core/accumulation.hpp).
#pragma once

#include <cstddef>
#include <optional>

#include "core/accumulation.hpp"
#include "cudnn/device.hpp"
#include "cudnn/engine.hpp"

namespace mucudnn {

// The way in which a device sums the slices of a kernel.
struct Accumulation {
  std::size_t most_in_place;
  // accumulator_size(); also nothing if the device cannot sum in fp32.
  std::optional<std::size_t> size;
};
Accumulation accumulator_size(Device& device, const Kernel& kernel, std::size_t slices);

// Returns the size that a division needs to run. Throws EngineError if no such division exists.
std::size_t required_accumulator(Device& device, const Kernel& kernel, std::size_t slices);

// The sum of the slices that a call runs one after another, for a pass that adds them.
class SliceSum {
 public:
  // Takes a call's arguments and turns them into those of its first slice. With `scratch`, the slices are
  // summed there in fp32; without it, each slice adds to the output.
  SliceSum(Device& device, const Kernel& kernel, char* scratch, Arguments& slice);
  // Call this after each slice.
  void add_slice() {
    if (accumulator_ != nullptr) return accumulate();
    if (adds_slices(kernel_.pass)) slice_.beta = 1;
  }
  // Call this after the last slice. It rounds the sum once.
  void store() const;

 private:
  void accumulate();

  Accumulator* accumulator_ = nullptr;  // null for a sum in the output
  const Kernel& kernel_;
  Arguments& slice_;
  char* output_;
  double beta_;
  float* sum_ = nullptr;
  bool is_empty_ = true;
};

}  // namespace mucudnn
