#include "cudnn/measure.hpp"

#include <algorithm>

namespace mucudnn {
namespace {

constexpr int kLeastRuns = 3;

struct Bytes {
  std::size_t x;
  std::size_t w;
  std::size_t y;
};

Bytes bytes_of(const Problem& problem) {
  const std::size_t item = size_of(problem.data_type);
  const auto samples = static_cast<std::size_t>(problem.mini_batch);
  return {samples * static_cast<std::size_t>(problem.x_sample()) * item,
          static_cast<std::size_t>(problem.w_elements()) * item,
          samples * static_cast<std::size_t>(problem.y_sample()) * item};
}

}  // namespace

void check_sizes(const Problem& problem, const Region& region) {
  const Bytes need = bytes_of(problem);
  const auto require = [](const char* name, std::size_t size, std::size_t least) {
    if (size < least) {
      throw std::invalid_argument(std::string(name) + " has " + std::to_string(size) +
                                  " bytes, the problem needs " + std::to_string(least));
    }
  };
  require("x", region.x_size, need.x);
  require("w", region.w_size, need.w);
  require("y", region.y_size, need.y);
}

std::vector<double> measure(Engine& engine, Device& device, const Problem& problem, Pass pass,
                            const std::string& algorithm, const Region& region, const Scratch& workspace,
                            int repeats, double budget_ms, double hopeless_ms) {
  check_sizes(problem, region);
  const auto kernel = engine.prepare(problem, pass, algorithm);
  const Bytes slice = bytes_of(problem);
  const std::size_t slices = std::min(region.x_size / slice.x, region.y_size / slice.y);
  std::size_t next = 0;
  const auto time_one = [&] {
    const Tensors at{region.tensors.x + next * slice.x, region.tensors.w, region.tensors.y + next * slice.y};
    next = (next + 1) % slices;
    return device.time_ms([&] { kernel->execute(engine.handle(), {at}, workspace); });
  };
  time_one();
  std::vector<double> times{time_one()};
  double sum = times.front();
  const bool is_hopeless = sum > hopeless_ms;
  const int most = std::max(is_hopeless ? 0 : repeats, kLeastRuns);
  const auto runs = [&] { return static_cast<int>(times.size()); };
  while (runs() < most && (sum < budget_ms || (runs() < kLeastRuns && !is_hopeless))) {
    times.push_back(time_one());
    sum += times.back();
  }
  return times;
}

std::vector<std::vector<double>> compare(Engine& engine, Device& device,
                                         const std::vector<const PreparedConfiguration*>& configurations,
                                         const Tensors& tensors, const Scratch& workspace, int rounds) {
  std::vector<std::vector<double>> times(configurations.size());
  for (int round = -1; round < rounds; ++round) {
    for (std::size_t i = 0; i < configurations.size(); ++i) {
      const double time = device.time_ms(
          [&] { configurations[i]->run(engine.handle(), {tensors, 1, 0, {}, device.stream()}, workspace); });
      if (round >= 0) times[i].push_back(time);
    }
  }
  return times;
}

}  // namespace mucudnn
