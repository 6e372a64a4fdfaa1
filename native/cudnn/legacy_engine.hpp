// The algorithms of cuDNN's legacy convolution API.
#pragma once

#include <memory>

#include "cudnn/context.hpp"
#include "cudnn/engine.hpp"

namespace mucudnn {

// The context has a handle; where that is somebody else's, kernels may live longer than it.
std::unique_ptr<Engine> make_legacy_engine(std::shared_ptr<const Context> context);

// The name of an enumerator of the pass's algorithms; null where it is none. The engine enumerates in the
// order of the enumerators.
const char* legacy_algorithm(Pass pass, unsigned enumerator);
constexpr int kMostLegacyAlgorithms = CUDNN_CONVOLUTION_FWD_ALGO_COUNT;

}  // namespace mucudnn
