// An engine that lists a library's legacy algorithms and its engines of the graph API together.
#pragma once

#include <memory>

#include "cudnn/context.hpp"
#include "cudnn/engine.hpp"

namespace mucudnn {

// The context must have a handle. If the caller owns that handle, kernels may outlive it.
std::unique_ptr<Engine> make_combined_engine(std::shared_ptr<const Context> context);

// Makes an engine for a library whose graph API offers its legacy algorithms again, such as the host engine.
// It lists engines of the graph API for fused problems only. `constant_filters` is the answer of
// has_constant_filters().
std::unique_ptr<Engine> make_plain_engine(std::shared_ptr<const Context> context,
                                          bool constant_filters = false);

}  // namespace mucudnn
