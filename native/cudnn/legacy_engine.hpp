// The algorithms of cuDNN's legacy convolution API.
#pragma once

#include <memory>

#include "cudnn/context.hpp"
#include "cudnn/engine.hpp"

namespace mucudnn {

// The context must have a handle. If the caller owns that handle, kernels may outlive it.
std::unique_ptr<Engine> make_legacy_engine(std::shared_ptr<const Context> context);

// Returns the name of an algorithm of the pass; null if the enumerator is unknown. The engine lists
// algorithms in the order of the enumerators.
const char* legacy_algorithm(Pass pass, unsigned enumerator);
constexpr unsigned kMostLegacyAlgorithms = CUDNN_CONVOLUTION_FWD_ALGO_COUNT;

}  // namespace mucudnn
