// What a program has set on its descriptors of the graph API, which the library does not tell.
#pragma once

#include <cstring>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "cudnn/backend.hpp"

namespace mucudnn::shim {

struct GraphPlan;
class Shadow;

using Referred = std::vector<std::shared_ptr<const Shadow>>;  // null: of a descriptor that has no shadow

// An attribute as it was set. What is too long to matter, or of an unknown type, is kept without its values.
struct Attribute {
  cudnnBackendAttributeName_t name{};
  cudnnBackendAttributeType_t type{};
  std::vector<char> values;
  Referred referred;  // of descriptors
};

// The attributes of one descriptor. A shadow keeps the shadows that it refers to, as they were when the
// program set them: cuDNN copies a descriptor into the one that is made of it, and programs destroy or
// initialize it again afterwards.
class Shadow {
 public:
  explicit Shadow(cudnnBackendDescriptorType_t type) : type_(type) {}

  cudnnBackendDescriptorType_t type() const { return type_; }
  void set(Attribute attribute);
  // Makes has_only() false: the library has written attributes that nobody told us.
  void set_unknown() { is_unknown_ = true; }

  // Nothing where it was not set, or as another type.
  template <typename Value>
  std::vector<Value> values(cudnnBackendAttributeName_t name) const {
    const Attribute* const found = find(name);
    if (found == nullptr || found->type != attribute_type<Value>()) return {};
    std::vector<Value> values;
    for (std::size_t at = 0; at < found->values.size(); at += sizeof(Value)) {
      Value value;
      std::memcpy(&value, found->values.data() + at, sizeof value);
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
  // The one descriptor of an attribute; null where there is not one.
  std::shared_ptr<const Shadow> referred_one(cudnnBackendAttributeName_t name) const;

  const Attribute* find(cudnnBackendAttributeName_t name) const;

  // Whether nothing else was set.
  bool has_only(std::initializer_list<cudnnBackendAttributeName_t> names) const;

 private:
  cudnnBackendDescriptorType_t type_;
  std::vector<Attribute> attributes_;
  bool is_unknown_ = false;
};

// The shadows of the descriptors that there are, of the types that matter. A descriptor may be used by one
// thread at a time until it is finalized, as in cuDNN; the table by any number.
class Shadows {
 public:
  void create(cudnnBackendDescriptor_t descriptor, cudnnBackendDescriptorType_t type) noexcept;
  void forget(cudnnBackendDescriptor_t descriptor) noexcept;
  // The descriptor is as new. Those that were made of it keep what it was.
  void initialize(cudnnBackendDescriptor_t descriptor) noexcept;
  void set(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
           cudnnBackendAttributeType_t type, std::int64_t count, const void* values) noexcept;
  // The program has read an attribute of `source`, and the library has written `targets`, descriptors of the
  // program's, all over.
  void copy(cudnnBackendDescriptor_t source, cudnnBackendAttributeName_t name, std::int64_t count,
            const cudnnBackendDescriptor_t* targets) noexcept;
  void finalize(cudnnBackendDescriptor_t descriptor, std::shared_ptr<const GraphPlan> plan) noexcept;

  // Null where there is none.
  std::shared_ptr<const Shadow> find(cudnnBackendDescriptor_t descriptor) const noexcept;
  std::shared_ptr<const Shadow> find_finalized(cudnnBackendDescriptor_t descriptor) const noexcept;
  std::shared_ptr<const GraphPlan> plan(cudnnBackendDescriptor_t descriptor) const noexcept;

  // A plan whose text the program has read, to be found when another is made of that text.
  void set_text(std::string text, std::shared_ptr<const GraphPlan> plan) noexcept;
  std::shared_ptr<const GraphPlan> plan_of_text(const std::string& text) const noexcept;

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct Entry {
    std::shared_ptr<Shadow> shadow;
    std::shared_ptr<const GraphPlan> plan;  // null but for an execution plan that is finalized
    bool is_finalized = false;
  };

  mutable std::mutex mutex_;
  std::unordered_map<cudnnBackendDescriptor_t, Entry> entries_;
  std::unordered_map<std::string, std::shared_ptr<const GraphPlan>> texts_;
};

}  // namespace mucudnn::shim
