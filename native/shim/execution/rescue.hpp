// Rescues a call of the legacy API that would fail for want of workspace: the program brings the size that we
// answered, which is too small for its own algorithm, or the library cannot allocate.
#pragma once

#include "shim/execution/execution.hpp"

namespace mucudnn::shim {

// Returns the bytes that the caller's own call needs; 0 if the library refuses the call.
std::int64_t own_workspace(const Library& library, const LegacyCall& call) noexcept;

// Runs the call in slices, by the caller's own algorithm or, if that never fits, by one that needs little
// workspace. The slices use copies of the caller's descriptors, so convolutions that we do not recognise are
// rescued too. Nothing is planned or measured. Returns false if nothing was computed: then the library's own
// status stands.
// With `lacks_memory`, the slices are smaller than the mini-batch, they run the caller's own algorithm alone,
// and they get smaller as long as the library finds no memory for them.
bool run_in_slices(const Library& library, const LegacyCall& call, bool lacks_memory,
                   cudnnStatus_t& status) noexcept;

}  // namespace mucudnn::shim
