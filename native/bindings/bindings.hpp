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

// Bytes on a device. The pointer frees them if they are owned.
class Memory {
 public:
  Memory(std::shared_ptr<Device> device, std::shared_ptr<char> data, std::size_t size)
      : device_(std::move(device)), data_(std::move(data)), size_(size) {}

  Device& device() const { return *device_; }
  std::size_t size() const { return size_; }
  char* data() const { return data_.get(); }

 private:
  std::shared_ptr<Device> device_;
  std::shared_ptr<char> data_;
  std::size_t size_;
};

}  // namespace mucudnn::python
