// What an algorithm costs, guessed without running it.
#pragma once

#include "host/abi/mapping.hpp"

namespace mucudnn::host {

// A rough model, in multiplications: those of the method, and kTraffic for each number that goes through the
// workspace, which is about what a core does in the time that memory takes to write and read it.
double estimated_cost(Algorithm algorithm, Pass pass, const Problem& problem);

}  // namespace mucudnn::host
