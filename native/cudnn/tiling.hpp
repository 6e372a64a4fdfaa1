// Runs a convolution whose samples are divided into tiles (core/tiles.hpp). The result is exact.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cudnn/configuration.hpp"
#include "cudnn/device.hpp"

namespace mucudnn {

struct Tile {
  std::int64_t steps = 0;
  std::string algorithm;
};

class Tiling final : public PreparedConfiguration {
 public:
  // Throws EngineError if an algorithm cannot run, std::invalid_argument if the tiles do not add up to
  // tile_steps().
  Tiling(Engine& engine, Device& device, const Kernel& kernel, const std::vector<Tile>& tiles);

  // The most that a tile needs for its copies of x and y and its algorithm, and the accumulator.
  std::size_t workspace() const override { return tile_workspace_ + accumulator_size_; }
  // Runs one sample after the other.
  void run(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace) const override;

 private:
  struct Step {
    std::int64_t begin;  // the first step of the tile
    std::int64_t end;
    const PreparedKernel* prepared;
    Problem problem;
  };

  void run_tile(cudnnHandle_t handle, const Step& step, const Arguments& sample, char* scratch) const;

  Device& device_;
  Kernel kernel_;
  std::map<std::pair<std::int64_t, std::string>, std::unique_ptr<PreparedKernel>> prepared_;
  std::vector<Step> steps_;
  std::size_t tile_workspace_ = 0;
  std::size_t accumulator_size_ = 0;
};

}  // namespace mucudnn
