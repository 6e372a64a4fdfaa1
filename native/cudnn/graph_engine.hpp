// The engines of cuDNN's graph API, named as in engine_name.hpp.
#pragma once

#include <memory>

#include "cudnn/context.hpp"
#include "cudnn/engine.hpp"

namespace mucudnn {

// What cuDNN's graph API has and the caller's arithmetic does not allow: tensor cores for f32 unless tf32 is
// asked for, and at all where it must be strict; inputs or sums of less precision.
constexpr char kNotAllowed[] = "MUCUDNN_STATUS_NOT_ALLOWED";

// Where the context's device is described, it plans, and nothing that it prepares can be executed. It lists
// the engines that the library has for a problem and device, each as the heuristics configure it and as it
// configures itself. Those that are compiled for every plan, which takes seconds, it lists where the
// heuristics name them, of fused convolutions none: they need no workspace, and so no division. prepare()
// takes them all.
std::unique_ptr<Engine> make_graph_engine(std::shared_ptr<const Context> context);

// The alignment in bytes of the addresses that engines are planned for: of slices of the mini-batch that
// begin at multiples of their own size, as those of powers of two do.
std::int64_t usual_alignment(const Problem& problem);

}  // namespace mucudnn
