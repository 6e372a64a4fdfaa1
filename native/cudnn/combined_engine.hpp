// The legacy algorithms and the graph API's engines of one library, in one list.
#pragma once

#include <memory>

#include "cudnn/context.hpp"
#include "cudnn/engine.hpp"

namespace mucudnn {

// The context has a handle; where that is somebody else's, kernels may live longer than it.
std::unique_ptr<Engine> make_combined_engine(std::shared_ptr<const Context> context);

// Of a library whose engines are its legacy algorithms once more: it has engines for fused problems alone.
std::unique_ptr<Engine> make_plain_engine(std::shared_ptr<const Context> context);

}  // namespace mucudnn
