// Samples of arrays in memory. They show most writes that a framework does not count as changes of a tensor,
// without reading the whole arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace mucudnn::python {

// A packed array of `channels` rows of `size` elements of `item` bytes, at most eight.
struct SampledArray {
  const char* data;
  std::size_t channels, size, item;
};

// Returns a hash of one element of each channel, or of all elements if a channel has one.
inline std::uint64_t sample(const SampledArray& array, std::uint64_t hash = 0) {
  constexpr std::size_t kStep = 40503;  // odd, so that channels differ in the place of the element
  for (std::size_t i = 0; i < array.channels; ++i) {
    std::uint64_t value = 0;
    std::memcpy(&value, array.data + (i * array.size + i * kStep % array.size) * array.item, array.item);
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  }
  return hash;
}

// Arrays and the hash of their elements at the time of construction.
class ValueSample {
 public:
  explicit ValueSample(std::vector<SampledArray> arrays) : arrays_(std::move(arrays)), hash_(hash()) {}

  bool is_current() const { return hash() == hash_; }

 private:
  std::uint64_t hash() const {
    std::uint64_t hash = 0;
    for (const SampledArray& array : arrays_) hash = sample(array, hash);
    return hash;
  }

  std::vector<SampledArray> arrays_;
  std::uint64_t hash_;
};

}  // namespace mucudnn::python
