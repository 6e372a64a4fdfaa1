#include "cudnn/context.hpp"

namespace mucudnn {

Context::Context(std::shared_ptr<const Library> library, cudaStream_t stream) : library_(std::move(library)) {
  library_->check(library_->cudnnCreate(&handle_), "cudnnCreate");
  const cudnnStatus_t status = library_->cudnnSetStream(handle_, stream);
  if (status != CUDNN_STATUS_SUCCESS) library_->cudnnDestroy(handle_);
  library_->check(status, "cudnnSetStream");
}

Context::Context(std::shared_ptr<const Library> library, cudnnHandle_t handle)
    : library_(std::move(library)), handle_(handle), is_own_(false) {}

Context::Context(std::shared_ptr<const Library> library, const std::string& device_properties)
    : library_(std::move(library)) {
  device_.emplace(*library_, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device_->set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, device_properties);
  device_->finalize("reading the device's properties");
}

Context::~Context() {
  if (is_own_ && handle_ != nullptr) library_->cudnnDestroy(handle_);
}

std::string device_properties_of(const Context& context) {
  Backend device(context.library(), CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device.set(CUDNN_ATTR_DEVICEPROP_HANDLE, context.handle());
  device.finalize("reading the device's properties");
  return device.text(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION);
}

}  // namespace mucudnn
