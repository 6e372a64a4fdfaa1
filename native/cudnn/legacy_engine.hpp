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

}  // namespace mucudnn
