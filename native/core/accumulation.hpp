// The rule for sums of 16-bit filter gradients: how many slices a backward_filter may have.
#pragma once

#include <cstddef>
#include <limits>
#include <string>

#include "core/kernel.hpp"

namespace mucudnn {

constexpr std::size_t kAnyNumberOfSlices = std::numeric_limits<std::size_t>::max();

// Returns the most slices of a division. A kernel with a limit does not run in tiles.
//
// A backward_filter in f16 is not divided, because the gradient of a slice, which is in f16 too, may exceed
// 65504 (the largest f16) although the sum of all slices does not. The result would be inf or NaN however the
// slices are added. Engines that write the gradient in f32 would remove this limit, but a gradient's Problem
// has one type for all tensors.
//
// A backward_filter in bf16 has at most four slices, because every slice rounds the output once: the error
// grows by a factor of 1.65 at four slices and of 5.5 at 64. bf16 has the exponents of f32, in which the
// undivided call adds. Near the largest f32 the order of additions decides whether a sum becomes inf, but
// that is true of f32 kernels too, divided or not. bf16 rounds to inf from 3.396e38 on, f32 from 3.403e38 on;
// this 0.2 % does not justify denying bf16 its fast algorithms.
std::size_t most_slices(const Kernel& kernel);

// Returns why a division into that many slices is impossible; empty if it is possible.
std::string refusal_of_slices(const Kernel& kernel, std::size_t slices);

}  // namespace mucudnn
