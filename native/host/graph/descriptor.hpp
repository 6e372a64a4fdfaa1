// What stands behind a cudnnBackendDescriptor_t.
#pragma once

#include <memory>

#include "abi/cudnn_backend.h"
#include "host/abi/state.hpp"

namespace mucudnn::host::graph {

class Access;

// Set while it is open, read once it is finalized, and then never changed again: descriptors that refer to
// it share it, whatever the program does with its own pointer.
class Descriptor {
 public:
  virtual ~Descriptor() = default;

  bool finalized() const { return finalized_; }
  void finalize() {
    if (finalized_) bad_parameter("the descriptor is finalized already");
    complete();
    finalized_ = true;
  }

  // Offers each attribute to the access, which takes the one that it is about.
  virtual void attributes(Access& access) = 0;

 protected:
  // Derives what follows from the attributes. Throws Failure where they do not make sense together.
  virtual void complete() = 0;

 private:
  bool finalized_ = false;
};

// What the program's pointer points to.
struct Handle {
  cudnnBackendDescriptorType_t type;
  std::shared_ptr<Descriptor> descriptor;
};

// The finalized descriptor of this kind behind a program's pointer. Throws Failure: BAD_PARAM for another
// kind, `open` where it is not finalized.
template <typename Kind>
std::shared_ptr<Kind> finalized(cudnnBackendDescriptor_t pointer, cudnnStatus_t open) {
  auto found = std::dynamic_pointer_cast<Kind>(static_cast<Handle*>(pointer)->descriptor);
  if (!found) bad_parameter("the descriptor is of another kind");
  if (!found->finalized()) throw Failure(open, "the descriptor is not finalized");
  return found;
}

// A finalized descriptor of the library's own making.
template <typename Kind>
std::shared_ptr<Kind> complete(std::shared_ptr<Kind> descriptor) {
  descriptor->finalize();
  return descriptor;
}

}  // namespace mucudnn::host::graph
