// The library and the device that engines, and the kernels that they prepare, share.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cudnn/backend.hpp"
#include "cudnn/library.hpp"

namespace mucudnn {

class Context {
 public:
  // Makes a handle for the current device, whose work goes to `stream`. Throws EngineError if there is no
  // device.
  Context(std::shared_ptr<const Library> library, cudaStream_t stream);
  // Uses the caller's handle. The caller keeps it.
  Context(std::shared_ptr<const Library> library, cudnnHandle_t handle);
  // Plans for a device that is described in the JSON of cuDNN's device properties and need not be present.
  // Only the graph API can plan so. Throws CallFailed if the library refuses the text.
  Context(std::shared_ptr<const Library> library, const std::string& device_properties);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Library& library() const { return *library_; }
  const std::shared_ptr<const Library>& shared_library() const { return library_; }
  cudnnHandle_t handle() const { return handle_; }  // null if the device is only described
  // Null if the handle says which device it is.
  const Backend* device() const { return device_ ? &*device_ : nullptr; }

 private:
  std::shared_ptr<const Library> library_;
  cudnnHandle_t handle_ = nullptr;
  bool is_own_ = true;
  std::optional<Backend> device_;
};

// Returns the JSON that describes the device of the context's handle. Throws CallFailed if the library has
// none.
std::string device_properties_of(const Context& context);

}  // namespace mucudnn
