// A kept filter for Python, which knows the values that it was made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "core/problem.hpp"
#include "cudnn/dividing/kept_filter.hpp"

namespace mucudnn::python {

class PyKeptFilter {
 public:
  PyKeptFilter(const Problem& problem, const char* w, KeptFilter filter)
      : filter_(std::move(filter)),
        values_(w, w + static_cast<std::size_t>(problem.w_elements()) * size_of(problem.data_type)) {}

  std::size_t size() const { return filter_.size() + values_.size(); }
  const char* data() const { return filter_.data(); }

  // Returns whether the values at `w` are those that the filter was made of.
  bool matches(std::uintptr_t w) const {
    return std::memcmp(reinterpret_cast<const char*>(w), values_.data(), values_.size()) == 0;
  }

 private:
  KeptFilter filter_;
  std::vector<char> values_;
};

}  // namespace mucudnn::python
