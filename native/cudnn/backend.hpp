// Descriptors of cuDNN's graph API.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "abi/attribute_types.hpp"
#include "cudnn/library.hpp"

namespace mucudnn {

// One descriptor. The destructor destroys it if it is owned. Every call throws CallFailed if the library
// refuses it.
class Backend {
 public:
  Backend(const Library& library, cudnnBackendDescriptorType_t type);
  // Refers to a descriptor that its owner keeps.
  Backend(const Library& library, cudnnBackendDescriptor_t descriptor);
  ~Backend();
  Backend(Backend&& other) noexcept;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  cudnnBackendDescriptor_t get() const { return descriptor_; }

  template <typename Value>
  void set(cudnnBackendAttributeName_t name, const std::vector<Value>& values) {
    set(name, attribute_type<Value>(), static_cast<std::int64_t>(values.size()), values.data());
  }
  template <typename Value>
  void set(cudnnBackendAttributeName_t name, Value value) {
    set(name, attribute_type<Value>(), 1, &value);
  }
  void set(cudnnBackendAttributeName_t name, const Backend& value);
  void set(cudnnBackendAttributeName_t name, const std::vector<Backend>& values);
  void set(cudnnBackendAttributeName_t name, const std::string& text);

  // Finalizes the descriptor. `call` names it in error messages.
  void finalize(const char* call);

  template <typename Value>
  Value value(cudnnBackendAttributeName_t name) const {
    Value value{};
    get(name, attribute_type<Value>(), 1, &value);
    return value;
  }
  // Returns at most `most` values, because not every attribute says how many it has.
  template <typename Value>
  std::vector<Value> values(cudnnBackendAttributeName_t name, std::size_t most) const {
    std::vector<Value> values(most);
    values.resize(get(name, attribute_type<Value>(), static_cast<std::int64_t>(most), values.data()));
    return values;
  }
  std::vector<Backend> descriptors(cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type,
                                   std::size_t most) const;
  std::string text(cudnnBackendAttributeName_t name) const;

 private:
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count,
           const void* values);
  // Returns the number of values, which may be below `most`.
  std::size_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t most,
                  void* values) const;

  const Library* library_;
  cudnnBackendDescriptor_t descriptor_ = nullptr;
  bool is_own_ = true;
};

}  // namespace mucudnn
