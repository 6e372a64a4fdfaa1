#include "host/algorithms/convolution.hpp"

#include "host/algorithms/algorithms.hpp"
#include "host/threads/parallel.hpp"

namespace mucudnn::host {
namespace {

// Work below this takes some tens of microseconds, and is over before another thread wakes up for it.
constexpr double too_few_flops = 8e6;

constexpr std::size_t kMostKept = std::size_t{256} << 20;

const Implementation& implementation_of(Algorithm algorithm) {
  // The index is the algorithm.
  constexpr const Implementation* kImplementations[] = {&kImplicitGemm, &kExplicitGemm, &kWinograd, &kFft};
  return *kImplementations[static_cast<int>(algorithm)];
}

// Calls body with as many threads as the kernel is worth.
template <typename Body>
void run_on_threads(const Kernel& kernel, const Body& body) {
  if (kernel.problem.flops() < too_few_flops) return run_inline(body);
  body();
}

}  // namespace

std::optional<std::size_t> workspace_size(const Variant& variant, const Kernel& kernel) {
  return implementation_of(variant.algorithm).workspace_size(kernel, variant.tile_size);
}

void convolve(const Variant& variant, const Kernel& kernel, const Tensors& tensors, double alpha, double beta,
              void* workspace) {
  run_on_threads(kernel, [&] {
    implementation_of(variant.algorithm).convolve(kernel, tensors, alpha, beta, workspace, variant.tile_size);
  });
}

std::size_t kept_filter_size(const Variant& variant, const Kernel& kernel) {
  const Implementation& implementation = implementation_of(variant.algorithm);
  if (implementation.kept_filter_size == nullptr || kernel.pass == Pass::backward_filter) return 0;
  const std::size_t size = implementation.kept_filter_size(kernel);
  return size > kMostKept ? 0 : size;
}

void keep_filter(const Variant& variant, const Kernel& kernel, const void* w, void* kept) {
  run_on_threads(kernel, [&] { implementation_of(variant.algorithm).keep_filter(kernel, w, kept); });
}

}  // namespace mucudnn::host
