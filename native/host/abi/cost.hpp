// The estimated cost of an algorithm, without running it.
#pragma once

#include "host/abi/mapping.hpp"

namespace mucudnn::host {

// Returns a rough cost in multiplications: those of the method, and kTraffic for each number that goes
// through the workspace. A core does about so many multiplications while memory writes and reads one number.
double estimated_cost(Algorithm algorithm, const Kernel& kernel);

}  // namespace mucudnn::host
