// A kept filter for Python, which knows the values that it was made of.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/problem.hpp"
#include "cudnn/kept_filter.hpp"

namespace mucudnn::python {

class PyKeptFilter {
 public:
  PyKeptFilter(const Problem& problem, const char* w, KeptFilter filter)
      : problem_(problem), filter_(std::move(filter)), sample_(sample(w)) {}

  std::size_t size() const { return filter_.size(); }
  const char* data() const { return filter_.data(); }

  // Returns whether one value of each output channel at `w` is as it was. It finds most writes that a
  // framework does not count as changes of a tensor, without reading the whole filter.
  bool matches(std::uintptr_t w) const { return sample(reinterpret_cast<const char*>(w)) == sample_; }

 private:
  std::uint64_t sample(const char* w) const {
    const std::size_t item = size_of(problem_.data_type);
    const auto channels = static_cast<std::size_t>(problem_.out_channels);
    const std::size_t size = static_cast<std::size_t>(problem_.w_elements()) / channels;
    std::uint64_t hash = 0;
    for (std::size_t i = 0; i < channels; ++i) {
      constexpr std::size_t kStep =
          40503;  // an odd number, so that channels differ in the place of the value
      std::uint64_t value = 0;
      std::memcpy(&value, w + (i * size + i * kStep % size) * item, item);
      hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 32;
    }
    return hash;
  }

  Problem problem_;
  KeptFilter filter_;
  std::uint64_t sample_;
};

}  // namespace mucudnn::python
