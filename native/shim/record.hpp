// The file of convolutions that a program made: a list of descriptors that `mucudnn optimize` reads.
#pragma once

#include <string>

#include "shim/decisions/seen_kernels.hpp"

namespace mucudnn::shim {

// Adds what was executed to the file. Throws std::runtime_error where the file cannot be written, or is one
// that somebody else wrote.
void add_to_record(const std::string& path, const SeenKernels& kernels);

}  // namespace mucudnn::shim
