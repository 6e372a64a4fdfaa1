// Values of any data type, converted to and from fp64, to fill tensors and to check results.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.hpp"
#include "cudnn/device.hpp"

namespace mucudnn {

void to_double(DataType type, const void* from, double* to, std::size_t count);
void from_double(DataType type, const double* from, void* to, std::size_t count);

// Writes values uniform in [-0.5, 0.5). The same seed gives the same values.
void fill_random(DataType type, void* to, std::size_t count, std::uint64_t seed);
// Writes such values to the memory of a device. They repeat, because making gigabytes of them would take
// seconds.
void fill_random(Device& device, DataType type, char* to, std::size_t bytes, std::uint64_t seed);

}  // namespace mucudnn
