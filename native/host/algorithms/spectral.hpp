// Convolution by products of spectra, tile by tile: the common part of Winograd and FFT tiling.
#pragma once

#include <cstddef>
#include <optional>

#include "core/kernel.hpp"
#include "host/algorithms/algorithms.hpp"
#include "host/algorithms/spectral_products.hpp"

namespace mucudnn::host::spectral {

// Returns the bytes of workspace; nothing if the method cannot run the pass. The problem must be ungrouped,
// of stride 1, dilated only in height and width, and not in fp64. Spectra and their products are fp32 even
// for 16-bit tensors. The kernel must be smaller than the tile, except in depth. In backward_data the padding
// must be smaller than the dilated kernel.
std::optional<std::size_t> workspace_size(const Method& method, const Kernel& kernel);

void convolve(const Method& method, const Kernel& kernel, const Tensors& tensors, double alpha, double beta,
              void* workspace);

// The spectra of the filter, as in convolution.hpp.
std::size_t kept_filter_size(const Method& method, const Kernel& kernel);
void keep_filter(const Method& method, const Kernel& kernel, const void* w, void* kept);

// The implementation by the method that choose(kernel) returns, or nothing for a kernel that it cannot run.
// It may replace the kernel by another one with the same values in memory.
template <std::optional<Method> (*choose)(Kernel& kernel)>
constexpr Implementation kImplementation{
    [](const Kernel& kernel, int) {
      Kernel chosen = kernel;
      const auto method = choose(chosen);
      return method ? workspace_size(*method, chosen) : std::nullopt;
    },
    [](const Kernel& kernel, const Tensors& tensors, double alpha, double beta, void* workspace, int) {
      Kernel chosen = kernel;
      convolve(*choose(chosen), chosen, tensors, alpha, beta, workspace);
    },
    [](const Kernel& kernel) {
      Kernel chosen = kernel;
      return kept_filter_size(*choose(chosen), chosen);
    },
    [](const Kernel& kernel, const void* w, void* kept) {
      Kernel chosen = kernel;
      keep_filter(*choose(chosen), chosen, w, kept);
    }};

}  // namespace mucudnn::host::spectral
