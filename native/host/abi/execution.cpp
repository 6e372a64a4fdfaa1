#include "host/abi/execution.hpp"

#include <memory>

#include "abi/host.h"

namespace mucudnn::host {
namespace {

constexpr std::size_t kAlignment = 64;

void run(const Descriptors& descriptors, const Kernel& kernel, const Tensors& tensors, unsigned algorithm,
         const void* alpha, const void* beta, const Workspace& workspace) {
  require("alpha, beta", {alpha, beta});
  const cudnnDataType_t type = descriptors.x->type;
  const double keep = scale_of(beta, type);
  if (tensors.bias != nullptr && (kernel.pass != Pass::forward || keep != 0)) {
    bad_parameter("a bias is added in the forward pass, with beta 0");
  }
  run(legacy_algorithm(kernel.pass, algorithm), kernel, tensors, scale_of(alpha, type), keep, workspace);
}

// Returns the descriptors of a pass that reads a filter. Throws Failure, BAD_PARAM.
Descriptors descriptors_of(const mucudnnHostConvolution& its) {
  if (its.pass == static_cast<int>(Pass::forward) || its.pass == static_cast<int>(Pass::backward_data))
    return {static_cast<Pass>(its.pass), its.x, its.w, its.convolution, its.y};
  bad_parameter("the pass ", its.pass, " does not read a filter");
}

// Calls body(variant, kernel) with an algorithm that can run the convolution.
template <typename Body>
cudnnStatus_t with_kernel(const mucudnnHostConvolution* convolution, const Body& body) {
  return guarded([&] {
    require("convolution", {convolution});
    const Kernel kernel = kernel_of(descriptors_of(*convolution));
    const auto algorithm = legacy_algorithm(kernel.pass, convolution->algorithm);
    required_workspace(algorithm, kernel);
    body(Variant(*algorithm), kernel);
  });
}

}  // namespace

std::size_t required_workspace(const std::optional<Variant>& variant, const Kernel& kernel) {
  if (!variant) not_supported("the host engine does not have this algorithm");
  const std::optional<std::size_t> size = workspace_size(*variant, kernel);
  if (!size) not_supported("the algorithm cannot run this pass of ", to_text(kernel.problem));
  return *size == 0 ? 0 : *size + kAlignment;
}

void* usable_workspace(const std::optional<Variant>& variant, const Kernel& kernel, Workspace workspace) {
  const std::size_t required = required_workspace(variant, kernel);
  if (required == 0) return nullptr;
  require("workspace", {workspace.data});
  if (workspace.size < required) {
    bad_parameter("a workspace of ", workspace.size, " bytes: ", required, " are needed");
  }
  return std::align(kAlignment, required - kAlignment, workspace.data, workspace.size);
}

double estimated_cost(Algorithm algorithm, const Kernel& kernel) {
  const Problem& problem = kernel.problem;
  constexpr double kTraffic = 50;
  constexpr double kTileEdge = 16;  // the edge of an FFT tile, half of whose spectrum is kept
  double saving = 1;
  if (algorithm == Algorithm::winograd_nonfused) {
    const bool square = problem.kernel[1] > 1 && problem.kernel[2] > 1;
    const std::int64_t line = problem.kernel[1] * problem.kernel[2];
    const auto taps = static_cast<double>(line > 1 ? line : problem.kernel[0]);
    saving = square ? 4 : 4 * taps / (taps + 3);
  } else if (algorithm == Algorithm::fft_tiling) {
    const auto height = static_cast<double>(problem.kernel[1]);
    const auto width = static_cast<double>(problem.kernel[2]);
    const double per_tile = height * width * (kTileEdge + 1 - height) * (kTileEdge + 1 - width);
    saving = per_tile / (4 * kTileEdge * (kTileEdge / 2 + 1));
  }
  const auto moved = static_cast<double>(required_workspace(algorithm, kernel)) / sizeof(float);
  return static_cast<double>(problem.flops()) / 2 / saving + kTraffic * moved;
}

double scale_of(const void* value, cudnnDataType_t type) {
  return type == CUDNN_DATA_DOUBLE ? *static_cast<const double*>(value) : *static_cast<const float*>(value);
}

}  // namespace mucudnn::host

using namespace mucudnn::host;

extern "C" {

#define MUCUDNN_DEFINE(Name, Short, which, a, b, c)                                                        \
  cudnnStatus_t cudnnGetConvolution##Name##WorkspaceSize MUCUDNN_SIZE_PARAMETERS(Short, a, b, c) {         \
    return guarded([&] {                                                                                   \
      require("handle, size", {handle, size});                                                             \
      const mucudnn::Kernel kernel =                                                                       \
          kernel_of({mucudnn::Pass::which, x_descriptor, w_descriptor, convolution, y_descriptor});        \
      *size = required_workspace(legacy_algorithm(kernel.pass, algorithm), kernel);                        \
    });                                                                                                    \
  }                                                                                                        \
                                                                                                           \
  cudnnStatus_t cudnnConvolution##Name MUCUDNN_RUN_PARAMETERS(Short, a, b, c) {                            \
    return guarded([&] {                                                                                   \
      require("handle", {handle});                                                                         \
      const Descriptors used{mucudnn::Pass::which, x_descriptor, w_descriptor, convolution, y_descriptor}; \
      const mucudnn::Kernel kernel = kernel_of(used);                                                      \
      run(used, kernel, tensors_of(used, kernel.problem, x, w, y), algorithm, alpha, beta,                 \
          {workspace, workspace_size});                                                                    \
    });                                                                                                    \
  }
MUCUDNN_PASSES(MUCUDNN_DEFINE)
#undef MUCUDNN_DEFINE

#pragma GCC visibility push(default)

cudnnStatus_t mucudnnHostGetKeptFilterSize(const mucudnnHostConvolution* convolution, size_t* size) {
  return with_kernel(convolution, [&](const auto& variant, const auto& kernel) {
    require("size", {size});
    *size = kept_filter_size(variant, kernel);
  });
}

cudnnStatus_t mucudnnHostKeepFilter(const mucudnnHostConvolution* convolution, const void* w, void* kept) {
  return with_kernel(convolution, [&](const auto& variant, const auto& kernel) {
    require("w, kept", {w, kept});
    if (kept_filter_size(variant, kernel) == 0) not_supported("the algorithm reads the filter as it is");
    keep_filter(variant, kernel, w, kept);
  });
}

cudnnStatus_t mucudnnHostConvolve(const mucudnnHostConvolution* convolution, const void* alpha, void* x,
                                  const void* w, const void* kept, void* y, void* workspace,
                                  size_t workspace_size, const void* beta, const void* bias) {
  return guarded([&] {
    require("convolution", {convolution});
    const Descriptors descriptors = descriptors_of(*convolution);
    const mucudnn::Kernel kernel = kernel_of(descriptors);
    Tensors tensors = tensors_of(descriptors, kernel.problem, x, w, y);
    tensors.kept_filter = kept;
    tensors.bias = bias;
    run(descriptors, kernel, tensors, convolution->algorithm, alpha, beta, {workspace, workspace_size});
  });
}

#pragma GCC visibility pop

}  // extern "C"
