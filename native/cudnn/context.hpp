// What engines and the kernels that they prepare share: a library, and what it plans for.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cudnn/backend.hpp"
#include "cudnn/library.hpp"

namespace mucudnn {

class Context {
 public:
  // The device of a handle, whose work goes to `stream`. Throws EngineError where there is none.
  Context(std::shared_ptr<const Library> library, cudaStream_t stream);
  // The same on a handle of somebody else's, who keeps it.
  Context(std::shared_ptr<const Library> library, cudnnHandle_t handle);
  // A device that is described, in the JSON of cuDNN's device properties, and need not be there: for planning
  // with the graph API alone. Throws CallFailed where the library does not take the text.
  Context(std::shared_ptr<const Library> library, const std::string& device_properties);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Library& library() const { return *library_; }
  const std::shared_ptr<const Library>& shared_library() const { return library_; }
  cudnnHandle_t handle() const { return handle_; }  // null where the device is described
  const Backend* device() const { return device_ ? &*device_ : nullptr; }  // null where it is the handle's

 private:
  std::shared_ptr<const Library> library_;
  cudnnHandle_t handle_ = nullptr;
  bool is_own_ = true;
  std::optional<Backend> device_;
};

// The JSON that describes the device of the context's handle. Throws CallFailed where the library has none.
std::string device_properties_of(const Context& context);

}  // namespace mucudnn
