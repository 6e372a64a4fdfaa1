// The algorithm that runs each sample alone, so that the bits of its result depend on no other sample.
#pragma once

#include <string>
#include <vector>

#include "core/options.hpp"
#include "cudnn/engine.hpp"
#include "cudnn/library.hpp"

namespace mucudnn::shim {

// Returns the kernel with the arithmetic of batch_invariant: in fp32 and fp64 without tensor cores, since the
// program's engine, and with it TF32, may depend on the mini-batch.
Kernel with_invariant_math(const Kernel& kernel);

// Returns the algorithms that may run a kernel of one sample, the one to take first. All are deterministic,
// run without tiles, which only measurements can choose, and comply with the limit and the option `strict`.
// Without a limit they need the least workspace of all. The order is that of the library's heuristics, with
// the engines of the graph API last: only legacy algorithms take any alpha and beta. Nothing is measured, so
// the order is always the same. Throws EngineError.
std::vector<std::string> algorithms_of_a_sample(Engine& engine, const Library& library, const Kernel& sample,
                                                const Options& options);

}  // namespace mucudnn::shim
