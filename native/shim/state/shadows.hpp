// Shadows: notes of the attributes that a program sets on its graph API descriptors. cuDNN does not report
// them all back.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/recently_used.hpp"
#include "cudnn/backend.hpp"

namespace mucudnn::shim {

struct ExecutionPlan;
class Shadow;

using Referred = std::vector<std::shared_ptr<const Shadow>>;  // null for a descriptor without a shadow

// An attribute as the program set it. An attribute that is too long or of an unknown type is kept without its
// values.
struct Attribute {
  cudnnBackendAttributeName_t name{};
  cudnnBackendAttributeType_t type{};
  std::vector<char> values;
  Referred referred;  // the shadows of the descriptors, if the values are descriptors
};

// The attributes of one descriptor. A shadow holds the shadows that it refers to in the state in which the
// program set them. cuDNN copies a descriptor likewise, and programs then destroy or reuse the original.
class Shadow {
 public:
  explicit Shadow(cudnnBackendDescriptorType_t type) : type_(type) {}

  cudnnBackendDescriptorType_t type() const { return type_; }
  void set(Attribute attribute);
  // Makes has_only() false, because the library wrote attributes that we do not know into this descriptor.
  void set_unknown() { is_unknown_ = true; }

  // Returns the values of an attribute; none if it is not set, or set with another type.
  template <typename Value>
  std::vector<Value> values(cudnnBackendAttributeName_t name) const {
    const Attribute* const attribute = find(name);
    if (attribute == nullptr || attribute->type != attribute_type<Value>()) return {};
    std::vector<Value> values;
    for (std::size_t at = 0; at < attribute->values.size(); at += sizeof(Value)) {
      Value value;
      std::memcpy(&value, attribute->values.data() + at, sizeof value);
      values.push_back(value);
    }
    return values;
  }
  template <typename Value>
  Value value(cudnnBackendAttributeName_t name, Value otherwise) const {
    const auto all = values<Value>(name);
    return all.size() == 1 ? all.front() : otherwise;
  }

  Referred referred(cudnnBackendAttributeName_t name) const;
  // Returns the descriptor of an attribute that holds exactly one descriptor; else null.
  std::shared_ptr<const Shadow> referred_one(cudnnBackendAttributeName_t name) const;

  const Attribute* find(cudnnBackendAttributeName_t name) const;

  // Returns whether the program set no attribute but these.
  bool has_only(std::initializer_list<cudnnBackendAttributeName_t> names) const;

 private:
  cudnnBackendDescriptorType_t type_;
  std::vector<Attribute> attributes_;
  bool is_unknown_ = false;
};

// The shadows of all live descriptors. Any number of threads may use
// the table. As in cuDNN, only one thread at a time may use a descriptor before it is finalized.
class Shadows {
 public:
  Shadows();
  void create(cudnnBackendDescriptor_t descriptor, cudnnBackendDescriptorType_t type) noexcept;
  // Returns the plan that belonged to the descriptor, or null.
  std::shared_ptr<const ExecutionPlan> forget(cudnnBackendDescriptor_t descriptor) noexcept;
  // Clears the descriptor's shadow. Other shadows that refer to it keep the old attributes.
  void initialize(cudnnBackendDescriptor_t descriptor) noexcept;
  void set(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
           cudnnBackendAttributeType_t type, std::int64_t count, const void* values) noexcept;
  // Fills the shadows of `targets`, descriptors of the program into which the library has just copied the
  // attribute `name` of `source`.
  void copy(cudnnBackendDescriptor_t source, cudnnBackendAttributeName_t name, std::int64_t count,
            const cudnnBackendDescriptor_t* targets) noexcept;
  void finalize(cudnnBackendDescriptor_t descriptor, std::shared_ptr<const ExecutionPlan> plan) noexcept;

  // These return null for a descriptor without a shadow, and for one without a plan.
  std::shared_ptr<const Shadow> find(cudnnBackendDescriptor_t descriptor) const noexcept;
  std::shared_ptr<const Shadow> find_finalized(cudnnBackendDescriptor_t descriptor) const noexcept;
  std::shared_ptr<const ExecutionPlan> plan(cudnnBackendDescriptor_t descriptor) const noexcept;

  // Keeps the plan of a text that the program has read. plan_of_text() finds it when the program makes
  // another plan from that text. Only the texts used last are kept; a plan made from another text is decided
  // again, within the workspace that the program has read (WorkspaceAnswers).
  void set_text(std::string text, std::shared_ptr<const ExecutionPlan> plan) noexcept;
  std::shared_ptr<const ExecutionPlan> plan_of_text(const std::string& text) noexcept;

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct Entry {
    std::shared_ptr<Shadow> shadow;
    std::shared_ptr<const ExecutionPlan> plan;  // set only for a finalized execution plan
    bool is_finalized = false;
  };

  mutable std::mutex mutex_;
  std::unordered_map<cudnnBackendDescriptor_t, Entry> entries_;
  RecentlyUsed<std::string, std::shared_ptr<const ExecutionPlan>> texts_;
};

}  // namespace mucudnn::shim
