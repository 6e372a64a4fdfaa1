#include "host/algorithms/convolution.hpp"

#include "host/algorithms/algorithms.hpp"
#include "host/threads/parallel.hpp"

namespace mucudnn::host {
namespace {

// Work below this takes some tens of microseconds, and is over before another thread wakes up for it.
constexpr double too_few_flops = 8e6;

const Implementation& implementation_of(Algorithm algorithm) {
  // The index is the algorithm.
  constexpr const Implementation* kImplementations[] = {&kImplicitGemm, &kExplicitGemm, &kWinograd, &kFft};
  return *kImplementations[static_cast<int>(algorithm)];
}

}  // namespace

std::optional<std::size_t> workspace_size(const Variant& variant, const Kernel& kernel) {
  return implementation_of(variant.algorithm).workspace_size(kernel, variant.tile_size);
}

void convolve(const Variant& variant, const Kernel& kernel, const Tensors& tensors, double alpha, double beta,
              void* workspace) {
  const auto run = [&] {
    implementation_of(variant.algorithm).convolve(kernel, tensors, alpha, beta, workspace, variant.tile_size);
  };
  if (kernel.problem.flops() < too_few_flops) return run_inline(run);
  run();
}

}  // namespace mucudnn::host
