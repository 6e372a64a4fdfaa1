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
      : problem_(problem), filter_(std::move(filter)), sample_(sample(w)) {}

  std::size_t size() const { return filter_.size(); }
  const char* data() const { return filter_.data(); }

  // Returns whether one value of each output channel at `w` is as it was.
  bool matches(std::uintptr_t w) const { return sample(reinterpret_cast<const char*>(w)) == sample_; }

 private:
  std::uint64_t sample(const char* w) const {
    const auto channels = static_cast<std::size_t>(problem_.out_channels);
    const std::size_t size = static_cast<std::size_t>(problem_.w_elements()) / channels;
    return python::sample({w, channels, size, size_of(problem_.data_type)});
  }

  Problem problem_;
  KeptFilter filter_;
  std::uint64_t sample_;
};

}  // namespace mucudnn::python
