// The objects behind a cudnnBackendDescriptor_t.
#pragma once

#include <memory>

#include "abi/cudnn_backend.h"
#include "host/abi/state.hpp"

namespace mucudnn::host::graph {

class Access;

// A descriptor can be set until it is finalized. Then it can be read and never changes. Descriptors that
// refer to it share its ownership, so that it survives the program's own pointer.
class Descriptor {
 public:
  virtual ~Descriptor() = default;

  bool is_finalized() const { return finalized_; }
  void finalize() {
    if (finalized_) bad_parameter("the descriptor is finalized already");
    complete();
    finalized_ = true;
  }

  // Offers each attribute to the access, which serves the one that the call names.
  virtual void attributes(Access& access) = 0;
  // Derives further values from the attributes. Throws Failure if they do not make sense together. Only
  // finalize() calls it.
  virtual void complete() = 0;

 private:
  bool finalized_ = false;
};

// The object that the program's pointer points to.
struct Handle {
  cudnnBackendDescriptorType_t type;
  std::shared_ptr<Descriptor> descriptor;
};

// Returns the finalized descriptor behind a program's pointer. Throws Failure: BAD_PARAM for another kind,
// `open` if it is not finalized.
template <typename Kind>
std::shared_ptr<Kind> finalized(cudnnBackendDescriptor_t pointer, cudnnStatus_t open) {
  auto descriptor = std::dynamic_pointer_cast<Kind>(static_cast<Handle*>(pointer)->descriptor);
  if (!descriptor) bad_parameter("the descriptor is of another kind");
  if (!descriptor->is_finalized()) throw Failure(open, "the descriptor is not finalized");
  return descriptor;
}

// Finalizes a descriptor that the library itself has made.
template <typename Kind>
std::shared_ptr<Kind> complete(std::shared_ptr<Kind> descriptor) {
  descriptor->finalize();
  return descriptor;
}

}  // namespace mucudnn::host::graph
