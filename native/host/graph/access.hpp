// One call to cudnnBackendSetAttribute or cudnnBackendGetAttribute, with the rules that all attributes share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "abi/attribute_types.hpp"
#include "host/graph/descriptor.hpp"

namespace mucudnn::host::graph {

// The alpha or beta of an operation. GetAttribute returns it in the type in which it was set.
struct Scalar {
  double value;
  cudnnBackendAttributeType_t type = CUDNN_TYPE_FLOAT;
};

class Access {
 public:
  using Name = cudnnBackendAttributeName_t;
  using Type = cudnnBackendAttributeType_t;

  // `elements` is the caller's array. Setting reads it, getting writes it.
  Access(bool setting, Name name, Type type, std::int64_t count, std::int64_t* returned, void* elements)
      : setting_(setting),
        name_(name),
        type_(type),
        count_(count),
        returned_(returned),
        elements_(elements) {}

  // Returns whether the descriptor has offered the attribute that the call names.
  bool is_served() const { return served_; }
  bool about(Name name) const { return name == name_; }

  // Sets the answer to a wrong type, which differs between kinds of descriptors.
  void answer_wrong_types(cudnnStatus_t status) { wrong_type_ = status; }

  // Refuses to read the attributes that follow.
  void only_set() { only_set_ = true; }

  // Refuses an attribute that cuDNN has but the host engine does not use.
  void refuse(Name name) const {
    if (name == name_) not_supported("the host engine has no attribute ", name_);
  }

  template <typename T>
  void value(Name name, T& member) {
    if (!serve(name, attribute_type<T>())) return;
    check_one();
    if (!setting_) return give(&member, 1);
    member = element<T>(0);
  }

  template <typename T>
  void values(Name name, std::vector<T>& member) {
    if (!serve(name, attribute_type<T>())) return;
    if (!setting_) return give(member.data(), member.size());
    if (count_ < 1) bad_parameter(counted(), ", which takes one or more");
    std::vector<T> taken(static_cast<std::size_t>(count_));
    std::memcpy(taken.data(), elements_, taken.size() * sizeof(T));
    member = std::move(taken);
  }

  void scalar(Name name, Scalar& member) {
    const bool is_double = type_ == CUDNN_TYPE_DOUBLE;
    const Type taken = is_double ? CUDNN_TYPE_DOUBLE : CUDNN_TYPE_FLOAT;
    if (!serve(name, setting_ ? taken : member.type)) return;
    check_one();
    if (setting_) {
      member = {is_double ? element<double>(0) : element<float>(0), taken};
    } else if (is_double) {
      give(&member.value, 1);
    } else {
      const auto value = static_cast<float>(member.value);
      give(&value, 1);
    }
  }

  // Setting a descriptor that is not finalized succeeds but stores none, as in cuDNN, so that finalizing
  // fails.
  template <typename Kind>
  void descriptor(Name name, std::shared_ptr<Kind>& member) {
    if (!serve(name, CUDNN_TYPE_BACKEND_DESCRIPTOR)) return;
    check_one();
    if (!setting_) {
      if (count_ == 1 && elements_ != nullptr && !lend(member, 0))
        bad_parameter("the descriptor to show it in is NULL or of another kind");
      return count(1);
    }
    auto* const handle = element<Handle*>(0);
    if (handle == nullptr) bad_parameter("the descriptor is NULL");
    member = handle->descriptor->is_finalized() ? finalized<Kind>(handle, CUDNN_STATUS_SUCCESS) : nullptr;
  }

  // `open` is the answer to a descriptor that is not finalized. `null` is the answer to a NULL pointer.
  template <typename Kind>
  void descriptors(Name name, std::vector<std::shared_ptr<Kind>>& member, cudnnStatus_t open,
                   cudnnStatus_t null) {
    if (!serve(name, CUDNN_TYPE_BACKEND_DESCRIPTOR)) return;
    if (!setting_) return elements_ == nullptr ? count(0) : lend_some(member);  // cuDNN counts so, too
    if (count_ < 0) bad_parameter(counted());
    std::vector<std::shared_ptr<Kind>> taken;
    for (std::int64_t i = 0; i < count_; ++i) {
      auto* const handle = element<Handle*>(i);
      if (handle == nullptr) throw Failure(null, "a descriptor is NULL");
      taken.push_back(finalized<Kind>(handle, open));
    }
    member = std::move(taken);
  }

  // Serves an attribute that can only be read.
  template <typename T>
  void result(Name name, T value) {
    only_read(name);
    this->value(name, value);
  }
  template <typename T>
  void results(Name name, std::vector<T> values) {
    only_read(name);
    this->values(name, values);
  }
  template <typename Kind>
  void descriptor_results(Name name, const std::vector<std::shared_ptr<Kind>>& values) {
    only_read(name);
    if (serve(name, CUDNN_TYPE_BACKEND_DESCRIPTOR)) lend_some(values);
  }

 private:
  void only_read(Name name) const {
    if (setting_ && name == name_) not_supported("attribute ", name_, " cannot be set");
  }

  // Returns whether the call names this attribute. Throws Failure if it cannot be read, or has another type.
  bool serve(Name name, Type type) {
    if (name != name_) return false;
    served_ = true;
    if (only_set_ && !setting_) not_supported("attribute ", name_, " cannot be read");
    if (type == type_) return true;
    throw Failure(wrong_type_, joined("attribute ", name_, " as type ", type_, ", not ", type));
  }

  // Throws unless the caller sets one value, or asks for one at most.
  void check_one() const {
    if (count_ > 1 || (setting_ && count_ != 1)) bad_parameter(counted(), ", which has one");
  }

  std::string counted() const { return joined(count_, " elements for attribute ", name_); }

  template <typename T>
  T element(std::int64_t index) const {
    T read;
    std::memcpy(&read, static_cast<const char*>(elements_) + index * std::int64_t{sizeof(T)}, sizeof(T));
    return read;
  }

  void count(std::int64_t available) const {
    if (returned_ != nullptr) *returned_ = available;
  }

  // Gives the first values to a caller that asks for some; a caller that asks for none learns their number.
  template <typename T>
  void give(const T* values, std::size_t available) const {
    auto written = static_cast<std::int64_t>(available);
    if (elements_ != nullptr && count_ >= 1) {
      written = std::min(count_, written);
      if (written > 0) std::memcpy(elements_, values, static_cast<std::size_t>(written) * sizeof(T));
    }
    count(written);
  }

  // Makes the caller's descriptor at `index` refer to `shown`. Returns false if it is NULL or of another
  // kind.
  template <typename Kind>
  bool lend(const std::shared_ptr<Kind>& shown, std::int64_t index) const {
    auto* const handle = element<Handle*>(index);
    if (handle == nullptr || !std::dynamic_pointer_cast<Kind>(handle->descriptor)) return false;
    handle->descriptor = shown;
    return true;
  }

  // Gives one value for each descriptor that the caller brought, up to the first of another kind.
  template <typename Kind>
  void lend_some(const std::vector<std::shared_ptr<Kind>>& shown) const {
    const auto available = static_cast<std::int64_t>(shown.size());
    if (elements_ == nullptr) return count(available);
    std::int64_t written = 0;
    while (written < std::min(count_, available) && lend(shown[static_cast<std::size_t>(written)], written))
      ++written;
    count(written);
  }

  bool setting_;
  Name name_;
  Type type_;
  std::int64_t count_;
  std::int64_t* returned_;
  void* elements_;
  cudnnStatus_t wrong_type_ = CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE;
  bool served_ = false, only_set_ = false;
};

// A caller's bool may hold any byte, so it is read as a byte.
template <>
inline bool Access::element<bool>(std::int64_t index) const {
  return element<unsigned char>(index) != 0;
}

}  // namespace mucudnn::host::graph
