// Non-fused Winograd F(4x4, 3x3): 36 multiplications give 16 outputs of 9 taps. cuDNN has it only for images.
// The host engine also has it for volumes, with any depth of the filter. A filter that is a line of r taps
// has F(4, r) in one dimension: r + 3 multiplications give 4 outputs of r taps. The line may lie along the
// depth, too.
#include "host/algorithms/algorithms.hpp"
#include "host/algorithms/spectral.hpp"

namespace mucudnn::host {
namespace {

std::optional<spectral::Method> method(const Problem& problem) {
  const std::int64_t height = problem.kernel[1], width = problem.kernel[2];
  const transforms::Kernels& kernels = transforms::kernels();
  if (height == 3 && width == 3) return spectral::Method{kernels.winograd, 6, 6, 36, 0};
  const std::int64_t taps = height * width;
  if (height != 1 && width != 1) return std::nullopt;
  if (taps != 3 && taps != 5 && taps != 7) return std::nullopt;
  const std::int64_t size = taps + 3;
  return spectral::Method{kernels.winograd_lines[taps / 2 - 1], height == 1 ? 1 : size, width == 1 ? 1 : size,
                          size, 0};
}

// A volume that a line along the depth correlates has the same values in memory as an image with all pixels
// of a depth in one row, in which the line lies along the height.
Kernel as_image(const Kernel& volume) {
  Kernel image = volume;
  Problem& p = image.problem;
  for (const int axis : {1, 2}) {
    if (p.kernel[axis] != 1 || p.padding[axis] != 0 || p.stride[axis] != 1) return volume;
  }
  for (auto* sizes : {&p.input, &p.output}) *sizes = {1, (*sizes)[0], (*sizes)[1] * (*sizes)[2]};
  for (auto* sizes : {&p.kernel, &p.stride, &p.dilation}) *sizes = {1, (*sizes)[0], 1};
  p.padding = {0, p.padding[0], 0};
  return image;
}

std::optional<std::size_t> workspace_size(const Kernel& kernel, int) {
  const Kernel image = as_image(kernel);
  const auto its_method = method(image.problem);
  return its_method ? spectral::workspace_size(*its_method, image) : std::nullopt;
}

void convolve(const Kernel& kernel, const Tensors& tensors, double alpha, double beta, void* workspace, int) {
  const Kernel image = as_image(kernel);
  spectral::convolve(*method(image.problem), image, tensors, alpha, beta, workspace);
}

std::size_t kept_filter_size(const Kernel& kernel) {
  const Kernel image = as_image(kernel);
  return spectral::kept_filter_size(*method(image.problem), image);
}

void keep_filter(const Kernel& kernel, const void* w, void* kept) {
  const Kernel image = as_image(kernel);
  spectral::keep_filter(*method(image.problem), image, w, kept);
}

}  // namespace

const Implementation kWinograd{workspace_size, convolve, kept_filter_size, keep_filter};

}  // namespace mucudnn::host
