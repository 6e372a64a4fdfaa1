#include "cudnn/backend.hpp"

#include <algorithm>
#include <utility>

namespace mucudnn {

Backend::Backend(const Library& library, cudnnBackendDescriptorType_t type) : library_(&library) {
  library.check(library.cudnnBackendCreateDescriptor(type, &descriptor_), "cudnnBackendCreateDescriptor");
}

Backend::Backend(const Library& library, cudnnBackendDescriptor_t descriptor)
    : library_(&library), descriptor_(descriptor), is_own_(false) {}

Backend::~Backend() {
  if (is_own_ && descriptor_ != nullptr) library_->cudnnBackendDestroyDescriptor(descriptor_);
}

Backend::Backend(Backend&& other) noexcept
    : library_(other.library_),
      descriptor_(std::exchange(other.descriptor_, nullptr)),
      is_own_(other.is_own_) {}

void Backend::set(cudnnBackendAttributeName_t name, const Backend& value) {
  set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.descriptor_);
}

void Backend::set(cudnnBackendAttributeName_t name, const std::vector<Backend>& values) {
  std::vector<cudnnBackendDescriptor_t> descriptors;
  for (const Backend& value : values) descriptors.push_back(value.descriptor_);
  set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<std::int64_t>(descriptors.size()), descriptors.data());
}

void Backend::set(cudnnBackendAttributeName_t name, const std::string& text) {
  set(name, CUDNN_TYPE_CHAR, static_cast<std::int64_t>(text.size() + 1), text.c_str());
}

void Backend::finalize(const char* call) {
  library_->check(library_->cudnnBackendFinalize(descriptor_), call);
}

std::vector<Backend> Backend::descriptors(cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type,
                                          std::size_t most) const {
  std::vector<Backend> all;
  std::vector<cudnnBackendDescriptor_t> places;
  for (std::size_t i = 0; i < most; ++i) places.push_back(all.emplace_back(*library_, type).descriptor_);
  const std::size_t count =
      get(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<std::int64_t>(most), places.data());
  while (all.size() > count) all.pop_back();
  return all;
}

std::string Backend::text(cudnnBackendAttributeName_t name) const {
  std::string text(get(name, CUDNN_TYPE_CHAR, 0, nullptr), '\0');
  get(name, CUDNN_TYPE_CHAR, static_cast<std::int64_t>(text.size()), text.data());
  while (!text.empty() && text.back() == '\0') text.pop_back();
  return text;
}

void Backend::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count,
                  const void* values) {
  library_->check(library_->cudnnBackendSetAttribute(descriptor_, name, type, count, values),
                  "cudnnBackendSetAttribute");
}

std::size_t Backend::get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                         std::int64_t most, void* values) const {
  std::int64_t count = 0;
  library_->check(library_->cudnnBackendGetAttribute(descriptor_, name, type, most, &count, values),
                  "cudnnBackendGetAttribute");
  return static_cast<std::size_t>(most == 0 ? count : std::min(count, most));
}

}  // namespace mucudnn
