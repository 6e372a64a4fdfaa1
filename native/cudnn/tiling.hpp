// Division of one sample: tiles along the first spatial axis (depth in 3-D, height in 2-D), each with the
// halo that its kernel reaches, so that a mini-batch of one can be divided too. The result is exact.
//
// Each tile is copied into scratch, zeros in the place of the padding, and is there an ordinary problem
// without padding along that axis. So a tile is measured, kept and chosen like a micro-batch: the dynamic
// programming adds tiles to rows as it adds micro-batches to the mini-batch.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cudnn/configuration.hpp"
#include "cudnn/device.hpp"

namespace mucudnn {

// The problem, of one sample, that a tile of so many of tile_steps() is: equal tiles are equal problems, also
// in backward_data, whose steps are as many rows as the stride. Throws std::invalid_argument for fused
// problems.
Problem tile_problem(const Problem& problem, Pass pass, std::int64_t steps);

// Bytes of the copies of such a tile's x and y, which stand before its algorithm's workspace.
std::size_t tile_copies(const Problem& problem, Pass pass, std::int64_t steps);

struct Tile {
  std::int64_t steps = 0;
  std::string algorithm;
};

class Tiling final : public PreparedConfiguration {
 public:
  // Throws EngineError where an algorithm cannot run, std::invalid_argument where the tiles do not add to
  // tile_steps().
  Tiling(Engine& engine, Device& device, const Problem& problem, Pass pass, const std::vector<Tile>& tiles);

  // The most that one tile needs, for its copies of x and y and for its algorithm; and the accumulators.
  std::size_t workspace() const override { return tile_workspace_ + accumulator_size_; }
  // Sample by sample.
  void run(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace) const override;

 private:
  struct Step {
    std::int64_t begin;  // the first step of the tile
    std::int64_t count;
    const PreparedKernel* kernel;
    Problem problem;
  };

  void run_tile(cudnnHandle_t handle, const Step& step, const Arguments& sample, char* scratch) const;

  Device& device_;
  Problem problem_;
  Pass pass_;
  std::map<std::pair<std::int64_t, std::string>, std::unique_ptr<PreparedKernel>> kernels_;
  std::vector<Step> steps_;
  std::size_t tile_workspace_ = 0;
  std::size_t accumulator_size_ = 0;
};

}  // namespace mucudnn
