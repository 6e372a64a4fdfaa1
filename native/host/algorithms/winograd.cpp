// Non-fused Winograd F(4x4, 3x3): 36 multiplications give 16 outputs of 9 taps. cuDNN has it only for images.
// The host engine also has it for volumes, with any depth of the filter. A filter that is a line of r taps
// has F(4, r) in one dimension: r + 3 multiplications give 4 outputs of r taps. The line may lie along the
// depth, too.
#include "host/algorithms/spectral.hpp"

namespace mucudnn::host {
namespace {

// A volume that a line along the depth correlates has the same values in memory as an image with all pixels
// of a depth in one row, in which the line lies along the height.
void turn_into_image(Problem& p) {
  for (const int axis : {1, 2}) {
    if (p.kernel[axis] != 1 || p.padding[axis] != 0 || p.stride[axis] != 1) return;
  }
  for (auto* sizes : {&p.input, &p.output}) *sizes = {1, (*sizes)[0], (*sizes)[1] * (*sizes)[2]};
  for (auto* sizes : {&p.kernel, &p.stride, &p.dilation}) *sizes = {1, (*sizes)[0], 1};
  p.padding = {0, p.padding[0], 0};
}

std::optional<spectral::Method> choose(Kernel& kernel) {
  turn_into_image(kernel.problem);
  const std::int64_t height = kernel.problem.kernel[1], width = kernel.problem.kernel[2];
  const transforms::Kernels& kernels = transforms::kernels();
  if (height == 3 && width == 3) return spectral::Method{kernels.winograd, 6, 6, 36, 0};
  const std::int64_t taps = height * width;
  if (height != 1 && width != 1) return std::nullopt;
  if (taps != 3 && taps != 5 && taps != 7) return std::nullopt;
  const std::int64_t size = taps + 3;
  return spectral::Method{kernels.winograd_lines[taps / 2 - 1], height == 1 ? 1 : size, width == 1 ? 1 : size,
                          size, 0};
}

}  // namespace

const Implementation kWinograd = spectral::kImplementation<choose>;

}  // namespace mucudnn::host
