// Samples of arrays in memory. They show most writes that a framework does not count as changes of a tensor,
// without reading the whole arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace mucudnn::python {

// One value of each channel of a packed array, and all values of an array whose channels have one.
class ArraySample {
 public:
  // Reads `channels` rows of `size` values of `item` bytes, at most eight.
  ArraySample(const char* data, std::size_t channels, std::size_t size, std::size_t item)
      : size_(size), item_(item), values_(channels) {
    for_each_place([&](std::size_t i, std::size_t place) { values_[i] = read(data + place); });
  }

  // Returns whether the values at `data` are those that were read.
  bool matches(const char* data) const {
    std::uint64_t differences = 0;
    for_each_place([&](std::size_t i, std::size_t place) { differences |= values_[i] ^ read(data + place); });
    return differences == 0;
  }

 private:
  template <class See>
  void for_each_place(See see) const {
    const std::size_t step = 40503 % size_;  // so that channels differ in the place of the value
    for (std::size_t i = 0, row = 0, value = 0; i < values_.size(); ++i, row += size_) {
      see(i, (row + value) * item_);
      value += step;
      if (value >= size_) value -= size_;
    }
  }

  std::uint64_t read(const char* place) const {
    std::uint64_t value = 0;
    // A copy whose size the compiler knows is one instruction.
    if (item_ == 4) {
      std::memcpy(&value, place, 4);
    } else {
      std::memcpy(&value, place, item_);
    }
    return value;
  }

  std::size_t size_, item_;
  std::vector<std::uint64_t> values_;
};

}  // namespace mucudnn::python
