#include "host/abi/cost.hpp"

#include "host/abi/execution.hpp"

namespace mucudnn::host {

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

}  // namespace mucudnn::host
