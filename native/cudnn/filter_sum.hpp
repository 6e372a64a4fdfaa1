// The sum of 16-bit filter gradients in fp32.
#pragma once

#include <cstddef>
#include <optional>

#include "cudnn/device.hpp"
#include "cudnn/engine.hpp"

namespace mucudnn {

// Slices of a 16-bit backward_filter that are summed in the output itself. Every slice rounds the output
// once: the error grows by a factor of 1.65 at four slices and of 5.5 at 64.
constexpr std::size_t kMostSlicesInPlace = 4;

// Bytes beyond the algorithms' own workspace for a division into `slices` slices: where a 16-bit
// backward_filter has more than kMostSlicesInPlace, one slice's result in 16 bit and their sum in fp32.
std::size_t accumulator_size(const Problem& problem, Pass pass, std::size_t slices);

// The same on a device; nothing where it would have to sum and cannot: there is no such division.
std::optional<std::size_t> accumulator_size(Device& device, const Problem& problem, Pass pass,
                                            std::size_t slices);

// The same for a division that is to be run. Throws EngineError where there is no such division.
std::size_t required_accumulator(Device& device, const Problem& problem, Pass pass, std::size_t slices);

// In scratch that lies behind the algorithms' workspace.
class FilterSum {
 public:
  FilterSum(Accumulator& accumulator, const Problem& problem, char* scratch);

  // Where the next slice's gradient goes.
  char* slice() const { return slice_; }
  void add_slice();
  // output = sum + beta * output, rounded once.
  void store(double beta, char* output) const;

 private:
  Accumulator& accumulator_;
  const Problem& problem_;
  char* slice_;
  float* sum_;
  bool empty_ = true;
};

}  // namespace mucudnn
