// A filter in the form that an algorithm computes with.
#pragma once

#include <cstddef>
#include <memory>

#include "cudnn/device.hpp"
#include "cudnn/engine.hpp"

namespace mucudnn {

class KeptFilter {
 public:
  KeptFilter() = default;
  // Makes the kept filter of `w`. Throws std::bad_alloc and EngineError.
  KeptFilter(Device& device, const PreparedKernel& prepared, const char* w)
      : size_(prepared.kept_filter_size()), data_(size_ == 0 ? nullptr : allocate(device, size_)) {
    if (data_ != nullptr) prepared.keep_filter(w, data_.get());
  }

  std::size_t size() const { return size_; }
  // Null if the algorithm computes with the tensor's own form.
  const char* data() const { return data_.get(); }

 private:
  std::size_t size_ = 0;
  std::shared_ptr<char> data_;
};

}  // namespace mucudnn
