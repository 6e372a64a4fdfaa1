// Values of any data type, seen as fp64: for filling tensors and judging results.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.hpp"

namespace mucudnn {

void to_double(DataType type, const void* from, double* to, std::size_t count);
void from_double(DataType type, const double* from, void* to, std::size_t count);

// Uniform in [-0.5, 0.5), the same for the same seed.
void fill_random(DataType type, void* to, std::size_t count, std::uint64_t seed);
void fill(DataType type, void* to, std::size_t count, double value);

}  // namespace mucudnn
