// A kept filter for Python, which knows the values that it was made of.
#pragma once

#include <cstdint>
#include <utility>

#include "bindings/value_sample.hpp"
#include "core/problem.hpp"
#include "cudnn/kept_filter.hpp"

namespace mucudnn::python {

class PyKeptFilter {
 public:
  PyKeptFilter(const Problem& problem, const char* w, KeptFilter filter)
      : filter_(std::move(filter)), sample_(sample(problem, w)) {}

  std::size_t size() const { return filter_.size(); }
  const char* data() const { return filter_.data(); }

  // Returns whether one value of each output channel at `w` is as it was.
  bool matches(std::uintptr_t w) const { return sample_.matches(reinterpret_cast<const char*>(w)); }

 private:
  static ArraySample sample(const Problem& problem, const char* w) {
    const auto channels = static_cast<std::size_t>(problem.out_channels);
    return {w, channels, static_cast<std::size_t>(problem.w_elements()) / channels,
            size_of(problem.data_type)};
  }

  KeptFilter filter_;
  ArraySample sample_;
};

}  // namespace mucudnn::python
