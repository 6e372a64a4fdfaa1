// The parts of the extension, each in a file of its own. `_native.pyi` documents what they export.
#pragma once

#include <memory>
#include <string>

#include <pybind11/pybind11.h>

#include "cudnn/device.hpp"

namespace mucudnn::python {

void bind_problem(pybind11::module_& module);
void bind_plan(pybind11::module_& module);
void bind_memory(pybind11::module_& module);
void bind_engine(pybind11::module_& module);
void bind_dlpack(pybind11::module_& module);
void bind_planner(pybind11::module_& module);
void bind_race(pybind11::module_& module);
void bind_settings(pybind11::module_& module);

// Bytes on a device. The destructor frees them if they are owned.
class Memory {
 public:
  Memory(std::shared_ptr<Device> device, std::size_t size)
      : device_(std::move(device)), size_(size), data_(device_->allocate(size)), is_own_(true) {}
  Memory(std::shared_ptr<Device> device, void* data, std::size_t size)
      : device_(std::move(device)), size_(size), data_(data), is_own_(false) {}
  ~Memory() {
    if (is_own_) device_->release(data_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  Device& device() const { return *device_; }
  std::size_t size() const { return size_; }
  char* data() const { return static_cast<char*>(data_); }

 private:
  std::shared_ptr<Device> device_;
  std::size_t size_;
  void* data_;
  bool is_own_;
};

}  // namespace mucudnn::python
