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
  // accumulator_size() in bytes; nothing also if the device cannot sum in fp32.
  std::optional<std::size_t> size;
};
Accumulation accumulator_size(Device& device, const Kernel& kernel, std::size_t slices);

// Returns the size that a division needs to run. Throws EngineError if no such division exists.
std::size_t required_accumulator(Device& device, const Kernel& kernel, std::size_t slices);

// A sum of slices, in scratch memory behind the algorithms' workspace.
class FilterSum {
 public:
  FilterSum(Accumulator& accumulator, const Problem& problem, char* scratch);

  // The address that the next slice's gradient must be written to.
  char* slice() const { return slice_; }
  void add_slice();
  // Computes output = sum + beta * output, rounded once.
  void store(double beta, char* output) const;

 private:
  Accumulator& accumulator_;
  const Problem& problem_;
  char* slice_;
  float* sum_;
  bool empty_ = true;
};

}  // namespace mucudnn
