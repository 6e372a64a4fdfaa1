// Memory for algorithms that need a small constant amount of it, and thus no workspace.
#pragma once

#include <cstddef>

namespace mucudnn::host {

constexpr std::size_t kThreadMemory = std::size_t{2} << 20;

// Returns kThreadMemory bytes, aligned to 64, that the thread keeps: mapping fresh pages in every call would
// cost more than a small convolution.
void* memory_of_this_thread();

// Returns transforms::kProductMemory more bytes, aligned to 64, in which products pack their factors.
void* product_memory_of_this_thread();

}  // namespace mucudnn::host
