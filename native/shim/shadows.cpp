#include "shim/shadows.hpp"

#include <algorithm>

namespace mucudnn::shim {
namespace {

constexpr std::int64_t kMostValues = 64;  // of an attribute that matters

bool matters(cudnnBackendDescriptorType_t type) {
  switch (type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR:
    case CUDNN_BACKEND_POINTWISE_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
      return true;
    default:
      return false;
  }
}

// Of the types that matter; else 0.
std::size_t size_of_value(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
      return sizeof(bool);
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
      return 8;
    case CUDNN_TYPE_FLOAT:
    case CUDNN_TYPE_INT32:
    case CUDNN_TYPE_DATA_TYPE:
    case CUDNN_TYPE_CONVOLUTION_MODE:
    case CUDNN_TYPE_POINTWISE_MODE:
    case CUDNN_TYPE_NAN_PROPOGATION:
    case CUDNN_TYPE_TENSOR_REORDERING_MODE:
      return 4;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
      return sizeof(void*);
    default:
      return 0;
  }
}

}  // namespace

void Shadow::set(Attribute attribute) {
  for (Attribute& present : attributes_) {
    if (present.name == attribute.name) {
      present = std::move(attribute);
      return;
    }
  }
  attributes_.push_back(std::move(attribute));
}

const Attribute* Shadow::find(cudnnBackendAttributeName_t name) const {
  const auto found = std::find_if(attributes_.begin(), attributes_.end(),
                                  [&](const Attribute& attribute) { return attribute.name == name; });
  return found == attributes_.end() ? nullptr : &*found;
}

Referred Shadow::referred(cudnnBackendAttributeName_t name) const {
  const Attribute* const found = find(name);
  return found == nullptr ? Referred() : found->referred;
}

std::shared_ptr<const Shadow> Shadow::referred_one(cudnnBackendAttributeName_t name) const {
  const Attribute* const found = find(name);
  return found == nullptr || found->referred.size() != 1 ? nullptr : found->referred.front();
}

bool Shadow::has_only(std::initializer_list<cudnnBackendAttributeName_t> names) const {
  return std::all_of(attributes_.begin(), attributes_.end(), [&](const Attribute& attribute) {
    return std::find(names.begin(), names.end(), attribute.name) != names.end();
  });
}

void Shadows::create(cudnnBackendDescriptor_t descriptor, cudnnBackendDescriptorType_t type) noexcept {
  if (!matters(type)) return;
  try {
    auto shadow = std::make_shared<Shadow>(type);
    const std::lock_guard<std::mutex> lock(mutex_);
    entries_[descriptor] = {std::move(shadow), nullptr};
  } catch (const std::bad_alloc&) {
    // Then what is made of this descriptor passes through.
  }
}

void Shadows::forget(cudnnBackendDescriptor_t descriptor) noexcept {
  Entry forgotten;  // freed behind the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(descriptor);
  if (found == entries_.end()) return;
  forgotten = std::move(found->second);
  entries_.erase(found);
}

void Shadows::clear(cudnnBackendDescriptor_t descriptor) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(descriptor);
  if (found == entries_.end()) return;
  found->second.shadow->clear();
  found->second.plan = nullptr;
}

void Shadows::set(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                  cudnnBackendAttributeType_t type, std::int64_t count, const void* values) noexcept {
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = entries_.find(descriptor);
    if (found == entries_.end()) return;
    Attribute attribute{name, type, {}, {}};
    if (count > 0 && count <= kMostValues && type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
      const auto* const referred = static_cast<const cudnnBackendDescriptor_t*>(values);
      for (std::int64_t i = 0; i < count; ++i) {
        const auto other = entries_.find(referred[i]);
        attribute.referred.push_back(other == entries_.end() ? nullptr : other->second.shadow);
      }
    } else if (count > 0 && count <= kMostValues) {
      const char* const bytes = static_cast<const char*>(values);
      attribute.values.assign(bytes, bytes + size_of_value(type) * static_cast<std::size_t>(count));
    }
    found->second.shadow->set(std::move(attribute));
  } catch (const std::bad_alloc&) {
    forget(descriptor);
  }
}

void Shadows::set(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                  std::shared_ptr<const Shadow> referred) noexcept {
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = entries_.find(descriptor);
    if (found == entries_.end()) return;
    found->second.shadow->set({name, CUDNN_TYPE_BACKEND_DESCRIPTOR, {}, {std::move(referred)}});
  } catch (const std::bad_alloc&) {
    forget(descriptor);
  }
}

void Shadows::set_plan(cudnnBackendDescriptor_t descriptor, std::shared_ptr<const GraphPlan> plan) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(descriptor);
  if (found != entries_.end()) found->second.plan = std::move(plan);
}

std::shared_ptr<const Shadow> Shadows::find(cudnnBackendDescriptor_t descriptor) const noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(descriptor);
  return found == entries_.end() ? nullptr : found->second.shadow;
}

std::shared_ptr<const GraphPlan> Shadows::plan(cudnnBackendDescriptor_t descriptor) const noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(descriptor);
  return found == entries_.end() ? nullptr : found->second.plan;
}

}  // namespace mucudnn::shim
