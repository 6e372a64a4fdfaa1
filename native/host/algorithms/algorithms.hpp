// The algorithms behind convolution.hpp. Each has a namespace and a source file of its own. Its two functions
// keep the contract of the two functions there.
#pragma once

#include <cstddef>
#include <optional>

#include "host/algorithms/convolution.hpp"

namespace mucudnn::host {

namespace implicit_gemm {
std::optional<std::size_t> workspace_size(const Kernel& kernel);
void convolve(const Kernel& kernel, const Tensors& tensors, double alpha, double beta, void* workspace);
}  // namespace implicit_gemm

namespace explicit_gemm {
std::optional<std::size_t> workspace_size(const Kernel& kernel, int tile_size);
void convolve(const Kernel& kernel, const Tensors& tensors, double alpha, double beta, void* workspace,
              int tile_size);
}  // namespace explicit_gemm

namespace winograd {
std::optional<std::size_t> workspace_size(const Kernel& kernel);
void convolve(const Kernel& kernel, const Tensors& tensors, double alpha, double beta, void* workspace);
}  // namespace winograd

namespace fft {
std::optional<std::size_t> workspace_size(const Kernel& kernel);
void convolve(const Kernel& kernel, const Tensors& tensors, double alpha, double beta, void* workspace);
}  // namespace fft

}  // namespace mucudnn::host
