// Runs algorithms whose samples are divided into tiles (core/tiles.hpp). The result is exact.
#pragma once

#include <memory>

#include "cudnn/device.hpp"
#include "cudnn/engine.hpp"

namespace mucudnn {

// Makes an engine that has the algorithms of `engine`, and these algorithms in tiles too. It lists tiles for
// kernels of one sample: for each algorithm the longest tiles that fit a workspace of 512 KiB, 1 MiB, and so
// on up to the algorithm's own. Shorter tiles than these would not stay in a cache any better.
//
// The device makes copies of the border and must outlive the engine and its prepared kernels.
std::unique_ptr<Engine> make_tiling_engine(std::unique_ptr<Engine> engine, Device& device);

}  // namespace mucudnn
