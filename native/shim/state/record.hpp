// Writes the record: a file of the convolutions that a program made, which `mucudnn optimize` reads.
#pragma once

#include <string>

#include "shim/decisions/seen_kernels.hpp"

namespace mucudnn::shim {

// Adds the executed kernels to the file. Throws std::runtime_error if the file cannot be written, or if it is
// not a record.
void add_to_record(const std::string& path, const SeenKernels& kernels);

}  // namespace mucudnn::shim
