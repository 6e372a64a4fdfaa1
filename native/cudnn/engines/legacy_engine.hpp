// The algorithms of cuDNN's legacy convolution API.
#pragma once

#include <memory>

#include "cudnn/context.hpp"
#include "cudnn/engine.hpp"

namespace mucudnn {

// These serve an Engine whose context has a handle.
Enumeration enumerate_legacy(const Context& context, const Kernel& kernel);
std::unique_ptr<PreparedKernel> prepare_legacy(std::shared_ptr<const Context> context, const Kernel& kernel,
                                               const std::string& algorithm, const Pitch& pitch);

// Returns the name of an algorithm of the pass; null if the enumerator is unknown. The engine lists
// algorithms in the order of the enumerators.
const char* legacy_algorithm(Pass pass, unsigned enumerator);
constexpr unsigned kMostLegacyAlgorithms = CUDNN_CONVOLUTION_FWD_ALGO_COUNT;

}  // namespace mucudnn
