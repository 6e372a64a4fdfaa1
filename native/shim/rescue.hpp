// The last resort for a call of the legacy API whose workspace is too small because of what we answered.
#pragma once

#include "shim/execution.hpp"

namespace mucudnn::shim {

// The bytes that the caller's own call needs; 0 where the library does not take it.
std::int64_t own_workspace(const Library& library, const Execution& execution) noexcept;

// Runs the call in slices of the caller's own algorithm or, where none fit, of one that needs little, on
// copies of the caller's own descriptors: so it serves convolutions too that we do not recognise. It plans
// and measures nothing. False where nothing is computed, and the library's own status stands.
bool run_in_slices(const Library& library, const Execution& execution, cudnnStatus_t& status) noexcept;

}  // namespace mucudnn::shim
