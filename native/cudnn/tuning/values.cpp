#include "cudnn/tuning/values.hpp"

#include <algorithm>
#include <vector>

#include "core/element.hpp"

namespace mucudnn {
namespace {

// splitmix64 (Steele, Lea and Flood 2014): a counter in, well-mixed bits out.
std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

}  // namespace

void to_double(DataType type, const void* from, double* to, std::size_t count) {
  with_type(type, [&](auto zero) {
    const auto* values = static_cast<const decltype(zero)*>(from);
    for (std::size_t i = 0; i < count; ++i) to[i] = widened(values[i]);
  });
}

void from_double(DataType type, const double* from, void* to, std::size_t count) {
  with_type(type, [&](auto zero) {
    auto* values = static_cast<decltype(zero)*>(to);
    for (std::size_t i = 0; i < count; ++i) narrow(from[i], values[i]);
  });
}

void fill_random(DataType type, void* to, std::size_t count, std::uint64_t seed) {
  with_type(type, [&](auto zero) {
    auto* values = static_cast<decltype(zero)*>(to);
    const std::uint64_t start = mix(seed);
    for (std::size_t i = 0; i < count; ++i) {
      narrow(static_cast<double>(mix(start + i) >> 40) * 0x1p-24 - 0.5, values[i]);
    }
  });
}

void fill_random(Device& device, DataType type, char* to, std::size_t bytes, std::uint64_t seed) {
  constexpr std::size_t kDifferent = 1048573;  // a prime, so that no two samples of a tensor are equal
  std::vector<char> block(std::min(bytes, kDifferent * size_of(type)));
  fill_random(type, block.data(), block.size() / size_of(type), seed);
  for (std::size_t at = 0; at < bytes; at += block.size())
    device.copy_from_host(to + at, block.data(), std::min(block.size(), bytes - at));
}

}  // namespace mucudnn
