#include "shim/state/shadows.hpp"

#include <algorithm>

namespace mucudnn::shim {
namespace {

constexpr std::int64_t kMostValues = 1024;  // longest attribute that a shadow keeps
constexpr std::size_t kMostTexts = 1024;    // plans of the texts that a program has read

// Returns the bytes of one value; 0 for types that no shadow keeps.
std::size_t size_of_value(cudnnBackendAttributeType_t type) {
  switch (type) {
#define SIZE_OF_VALUE(Value, name) \
  case CUDNN_TYPE_##name:          \
    return sizeof(Value);
    MUCUDNN_ATTRIBUTE_TYPES(SIZE_OF_VALUE)
#undef SIZE_OF_VALUE
    default:
      return 0;
  }
}

// Returns the shadow of an engine, or of an engine configuration, that cuDNN's heuristics made for `graph`.
std::shared_ptr<const Shadow> made_for_graph(cudnnBackendDescriptorType_t type,
                                             std::shared_ptr<const Shadow> graph) {
  if (graph == nullptr) return nullptr;
  auto made = std::make_shared<Shadow>(type);
  made->set({CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, {}, {std::move(graph)}});
  return made;
}

// Returns the shadow of the descriptor at `index` of an attribute; null if it is not known.
std::shared_ptr<const Shadow> part_of(const Shadow& from, cudnnBackendAttributeName_t name, std::size_t index,
                                      cudnnBackendDescriptorType_t type) {
  if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
    if (!from.has_only({CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_ATTR_ENGINEHEUR_MODE})) return nullptr;
    return made_for_graph(type, from.referred_one(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH));
  }
  const auto parts = from.referred(name);
  if (index < parts.size()) {
    return parts[index] == nullptr || parts[index]->type() != type ? nullptr : parts[index];
  }
  // A configuration that the heuristics gave holds an engine that the program never set.
  if (name == CUDNN_ATTR_ENGINECFG_ENGINE && from.has_only({CUDNN_ATTR_ENGINE_OPERATION_GRAPH}))
    return made_for_graph(type, from.referred_one(CUDNN_ATTR_ENGINE_OPERATION_GRAPH));
  return nullptr;
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
  const auto attribute = std::find_if(attributes_.begin(), attributes_.end(),
                                      [&](const Attribute& set) { return set.name == name; });
  return attribute == attributes_.end() ? nullptr : &*attribute;
}

Referred Shadow::referred(cudnnBackendAttributeName_t name) const {
  const Attribute* const attribute = find(name);
  return attribute == nullptr ? Referred() : attribute->referred;
}

std::shared_ptr<const Shadow> Shadow::referred_one(cudnnBackendAttributeName_t name) const {
  const Attribute* const attribute = find(name);
  return attribute == nullptr || attribute->referred.size() != 1 ? nullptr : attribute->referred.front();
}

bool Shadow::has_only(std::initializer_list<cudnnBackendAttributeName_t> names) const {
  return !is_unknown_ && std::all_of(attributes_.begin(), attributes_.end(), [&](const Attribute& attribute) {
    return std::find(names.begin(), names.end(), attribute.name) != names.end();
  });
}

Shadows::Shadows() : texts_(kMostTexts) {}

void Shadows::create(cudnnBackendDescriptor_t descriptor, cudnnBackendDescriptorType_t type) noexcept {
  try {
    auto shadow = std::make_shared<Shadow>(type);
    const std::lock_guard<std::mutex> lock(mutex_);
    entries_[descriptor] = {std::move(shadow), nullptr, false};
  } catch (const std::bad_alloc&) {
    // Out of memory: anything that the program makes from this descriptor passes through.
  }
}

std::shared_ptr<const ExecutionPlan> Shadows::forget(cudnnBackendDescriptor_t descriptor) noexcept {
  Entry forgotten;  // freed after the lock is released
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = entries_.find(descriptor);
  if (entry == entries_.end()) return nullptr;
  forgotten = std::move(entry->second);
  entries_.erase(entry);
  return forgotten.plan;
}

void Shadows::initialize(cudnnBackendDescriptor_t descriptor) noexcept {
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = entries_.find(descriptor);
    if (entry == entries_.end()) return;
    entry->second = {std::make_shared<Shadow>(entry->second.shadow->type()), nullptr, false};
  } catch (const std::bad_alloc&) {
    forget(descriptor);
  }
}

void Shadows::set(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                  cudnnBackendAttributeType_t type, std::int64_t count, const void* values) noexcept {
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = entries_.find(descriptor);
    if (entry == entries_.end()) return;
    Attribute attribute{name, type, {}, {}};
    if (count > 0 && count <= kMostValues && type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
      const auto* const referred = static_cast<const cudnnBackendDescriptor_t*>(values);
      for (std::int64_t i = 0; i < count; ++i) {
        const auto other = entries_.find(referred[i]);
        attribute.referred.push_back(other == entries_.end() ? nullptr : other->second.shadow);
      }
    } else if (count > 0 && (count <= kMostValues || type == CUDNN_TYPE_CHAR)) {
      const char* const bytes = static_cast<const char*>(values);
      attribute.values.assign(bytes, bytes + size_of_value(type) * static_cast<std::size_t>(count));
    }
    std::shared_ptr<Shadow>& shadow = entry->second.shadow;
    if (shadow.use_count() > 1)
      shadow = std::make_shared<Shadow>(*shadow);  // copy on write: other shadows refer to the old state
    shadow->set(std::move(attribute));
  } catch (const std::bad_alloc&) {
    forget(descriptor);
  }
}

void Shadows::copy(cudnnBackendDescriptor_t source, cudnnBackendAttributeName_t name, std::int64_t count,
                   const cudnnBackendDescriptor_t* targets) noexcept {
  const auto from = find(source);
  for (std::int64_t i = 0; i < count; ++i) {
    try {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto entry = entries_.find(targets[i]);
      if (entry == entries_.end()) continue;
      const auto type = entry->second.shadow->type();
      const auto part = from == nullptr ? nullptr : part_of(*from, name, static_cast<std::size_t>(i), type);
      auto shadow = part == nullptr ? std::make_shared<Shadow>(type) : std::make_shared<Shadow>(*part);
      if (part == nullptr) shadow->set_unknown();
      entry->second = {std::move(shadow), nullptr, true};
    } catch (const std::bad_alloc&) {
      forget(targets[i]);
    }
  }
}

void Shadows::finalize(cudnnBackendDescriptor_t descriptor,
                       std::shared_ptr<const ExecutionPlan> plan) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = entries_.find(descriptor);
  if (entry == entries_.end()) return;
  entry->second.plan = std::move(plan);
  entry->second.is_finalized = true;
}

std::shared_ptr<const Shadow> Shadows::find(cudnnBackendDescriptor_t descriptor) const noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = entries_.find(descriptor);
  return entry == entries_.end() ? nullptr : entry->second.shadow;
}

std::shared_ptr<const Shadow> Shadows::find_finalized(cudnnBackendDescriptor_t descriptor) const noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = entries_.find(descriptor);
  return entry == entries_.end() || !entry->second.is_finalized ? nullptr : entry->second.shadow;
}

std::shared_ptr<const ExecutionPlan> Shadows::plan(cudnnBackendDescriptor_t descriptor) const noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = entries_.find(descriptor);
  return entry == entries_.end() ? nullptr : entry->second.plan;
}

void Shadows::set_text(std::string text, std::shared_ptr<const ExecutionPlan> plan) noexcept {
  try {
    std::shared_ptr<const ExecutionPlan> forgotten;  // destroyed after the lock is released
    const std::lock_guard<std::mutex> lock(mutex_);
    if (texts_.find(text) == nullptr) forgotten = texts_.add(std::move(text), std::move(plan));
  } catch (const std::bad_alloc&) {
    // Out of memory: a plan made from this text reports the library's own workspace.
  }
}

std::shared_ptr<const ExecutionPlan> Shadows::plan_of_text(const std::string& text) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto* const plan = texts_.find(text);
  return plan == nullptr ? nullptr : *plan;
}

}  // namespace mucudnn::shim
