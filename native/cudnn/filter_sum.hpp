// How the filter gradients of slices become one: the rule for all that divide, and the sum in fp32.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <string>

#include "cudnn/device.hpp"
#include "cudnn/engine.hpp"

namespace mucudnn {

// Slices of a bf16 backward_filter that are summed in the output itself. Every slice rounds the output once:
// the error grows by a factor of 1.65 at four slices and of 5.5 at 64.
constexpr std::size_t kMostSlicesInPlace = 4;
constexpr std::size_t kAnyNumberOfSlices = std::numeric_limits<std::size_t>::max();

// The most slices of a division.
//
// A backward_filter in f16 is not divided. A slice's gradient is in f16, too, and may exceed 65504, the
// largest number there, where the sum of all slices does not. Then inf or NaN would come out, however slices
// are added. Engines that write the gradient in f32 would lift this: a Problem has one type for all tensors.
//
// In bf16 it is divided. bf16 has the exponents of f32, in which the undivided call adds. Sums near the end
// of f32 become inf or not by the order of additions, in f32 kernels as well, divided or not. bf16 only
// rounds to inf from 3.396e38 on instead of 3.403e38: 0.2 % are no reason to run bf16 without its fast
// algorithms.
std::size_t most_slices(const Problem& problem, Pass pass);

// Why there is no division into so many slices; empty where there is one.
std::string refusal_of_slices(const Problem& problem, Pass pass, std::size_t slices);

// The most slices that are summed in the output itself; more are summed in fp32.
std::size_t most_slices_in_place(const Problem& problem, Pass pass);

// Bytes beyond the algorithms' own workspace for a division into `slices` slices, on a device that can sum in
// fp32: room for one slice's result in 16 bit and for the sum, where slices are not summed in place. Nothing
// where there is no such division.
std::optional<std::size_t> accumulator_size(const Problem& problem, Pass pass, std::size_t slices);

// The slices of a kernel on a device.
struct Accumulation {
  std::size_t most_in_place;
  std::optional<std::size_t> size;  // accumulator_size(); nothing also where the device cannot sum in fp32
};
Accumulation accumulator_size(Device& device, const Problem& problem, Pass pass, std::size_t slices);

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
