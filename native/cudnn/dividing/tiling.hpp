// Runs algorithms whose samples are divided into tiles (core/tiles.hpp). The result is exact.
#pragma once

#include <memory>
#include <vector>

#include "core/tiles.hpp"
#include "cudnn/device.hpp"
#include "cudnn/engine.hpp"

namespace mucudnn {

// Returns the tiles of a kernel of one sample, none of others: for each of its `algorithms` the longest tiles
// that fit a workspace of 512 KiB, 1 MiB, and so on up to the algorithm's own. Shorter tiles than these would
// not stay in a cache any better.
std::vector<Candidate> tiles_of(const Engine& engine, Device& device, const Kernel& kernel,
                                const std::vector<Candidate>& algorithms);

// Prepares an algorithm in tiles of a sample. Throws EngineError.
std::unique_ptr<PreparedKernel> prepare_tiles(const Engine& engine, Device& device, const Kernel& kernel,
                                              const TiledAlgorithm& tiled, const Pitch& pitch);

}  // namespace mucudnn
