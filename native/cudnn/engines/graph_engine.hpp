// The engines of cuDNN's graph API, named as in engine_name.hpp.
#pragma once

#include <cstdint>
#include <memory>

#include "cudnn/context.hpp"
#include "cudnn/engine.hpp"

namespace mucudnn {

// Lists the library's engines of the graph API for a problem and device: each with the knob settings that the
// heuristics choose, and with its own defaults.
//
// Some engines are compiled for every execution plan, which takes seconds. They are listed only if the
// heuristics name them. For fused convolutions they are never listed: they need no workspace, so division
// cannot help. prepare_graph() takes all of them.
Enumeration enumerate_graph(const Context& context, const Kernel& kernel);
// If the context's device is only described, the kernel is a plan that cannot be executed.
std::unique_ptr<PreparedKernel> prepare_graph(std::shared_ptr<const Context> context, const Kernel& kernel,
                                              const std::string& algorithm, const Pitch& pitch);

// Returns the alignment in bytes that execution plans assume. Slices that begin at multiples of their own
// size, such as powers of two, have it. So do tiles in place, whose pitch has the rows of the whole sample.
std::int64_t usual_alignment(const Problem& problem, const Pitch& pitch = {});

}  // namespace mucudnn
