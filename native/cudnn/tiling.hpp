// Division of one sample into tiles along the first spatial axis (depth in 3-D, height in 2-D). Each tile
// includes the halo that the filter reaches, so that even a mini-batch of one can be divided. The result is
// exact.
//
// Each tile is copied into scratch memory, with zeros for the padding. There it is an ordinary problem
// without padding along that axis. A tile is therefore measured, stored and chosen like a micro-batch: the
// dynamic programming adds tiles to the steps of a sample as it adds micro-batches to the mini-batch.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cudnn/configuration.hpp"
#include "cudnn/device.hpp"

namespace mucudnn {

// Returns the problem, of one sample, that computes a tile of `steps` steps (tile_steps() in problem.hpp).
// Tiles of equal size are equal problems, also in backward_data. Throws std::invalid_argument for fused
// problems.
Problem tile_problem(const Problem& problem, Pass pass, std::int64_t steps);

// Returns the bytes of the copies of a tile's x and y, which stand in front of its algorithm's workspace.
std::size_t tile_copies(const Problem& problem, Pass pass, std::int64_t steps);

struct Tile {
  std::int64_t steps = 0;
  std::string algorithm;
};

class Tiling final : public PreparedConfiguration {
 public:
  // Throws EngineError if an algorithm cannot run, std::invalid_argument if the tiles do not add to
  // tile_steps().
  Tiling(Engine& engine, Device& device, const Problem& problem, Pass pass, const std::vector<Tile>& tiles);

  // The most that one tile needs, for its copies of x and y and for its algorithm, and the accumulator.
  std::size_t workspace() const override { return tile_workspace_ + accumulator_size_; }
  // Runs one sample after the other.
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
