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

// On a handle of the caller's, which lives longer than the engine; kernels that it prepares may live longer
// than both.
std::unique_ptr<Engine> make_legacy_engine_on(std::shared_ptr<const Library> library, cudnnHandle_t handle);

// The name of an enumerator of the pass's algorithms; null where it is none. The engine enumerates in the
// order of the enumerators.
const char* legacy_algorithm(Pass pass, unsigned enumerator);
constexpr int kMostLegacyAlgorithms = CUDNN_CONVOLUTION_FWD_ALGO_COUNT;

}  // namespace mucudnn
