// The layout of scratch memory.
#pragma once

#include <cstddef>

namespace mucudnn {

// The alignment in bytes of buffers that share an allocation.
constexpr std::size_t kAlignment = 256;
constexpr std::size_t aligned(std::size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace mucudnn
