// The algorithms of cuDNN's legacy convolution API.
#pragma once

#include <memory>

#include "cudnn/engine.hpp"
#include "cudnn/library.hpp"

namespace mucudnn {

// Its work goes to `stream`. Throws EngineError where no handle can be created. The library is kept loaded by
// the engine.
std::unique_ptr<Engine> make_legacy_engine(std::shared_ptr<const Library> library,
                                           cudaStream_t stream = nullptr);

// The name of an enumerator of the pass's algorithms; null where it is none. The engine enumerates in the
// order of the enumerators.
const char* legacy_algorithm(Pass pass, unsigned enumerator);
constexpr int kMostLegacyAlgorithms = CUDNN_CONVOLUTION_FWD_ALGO_COUNT;

}  // namespace mucudnn
