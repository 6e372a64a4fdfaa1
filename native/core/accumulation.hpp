// The rule for sums of 16-bit filter gradients: how many slices a backward_filter may have, and how they are
// added.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <string>

#include "core/kernel.hpp"

namespace mucudnn {

// The most slices of a bf16 backward_filter that are summed in the output itself. Every slice rounds the
// output once: the error grows by a factor of 1.65 at four slices and of 5.5 at 64.
constexpr std::size_t kMostSlicesInPlace = 4;
constexpr std::size_t kAnyNumberOfSlices = std::numeric_limits<std::size_t>::max();

// Returns the most slices of a division.
//
// A backward_filter in f16 is not divided, because the gradient of a slice, which is in f16 too, may exceed
// 65504 (the largest f16) although the sum of all slices does not. The result would be inf or NaN however the
// slices are added. Engines that write the gradient in f32 would remove this limit, but a gradient's Problem
// has one type for all tensors.
//
// A backward_filter in bf16 is divided, because bf16 has the exponents of f32, in which the undivided call
// adds. Near the largest f32 the order of additions decides whether a sum becomes inf, but that is true of
// f32 kernels too, divided or not. bf16 rounds to inf from 3.396e38 on, f32 from 3.403e38 on; this 0.2 % does
// not justify denying bf16 its fast algorithms.
std::size_t most_slices(Pass pass, DataType type);

// Returns the most slices that are summed in the output itself. More slices are summed in fp32.
std::size_t most_slices_in_place(Pass pass, DataType type);

// Returns why a division into that many slices is impossible; empty if it is possible.
std::string refusal_of_slices(const Kernel& kernel, std::size_t slices);

// Returns the bytes that a division into `slices` slices needs beyond the algorithms' workspace, on a device
// that can sum in fp32. They hold one slice's 16-bit gradient and the fp32 sum; 0 if slices are summed in
// place. Returns nothing if the division is impossible.
std::optional<std::size_t> accumulator_size(const Kernel& kernel, std::size_t slices);

// Returns the bytes of one slice's gradient at the front of the accumulator. The fp32 sum follows.
std::size_t accumulated_slice_size(const Problem& problem);

}  // namespace mucudnn
