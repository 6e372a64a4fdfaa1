// Reads tensors of other libraries through DLPack (https://dmlc.github.io/dlpack, versions 0 and 1).
#include <cstdint>
#include <stdexcept>

#include "bindings/bindings.hpp"
#include "core/tensors.hpp"
#include "core/text.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace mucudnn::python {
namespace {

// The structures of dlpack.h. Only their beginnings are read.
struct DLTensor {
  void* data;
  std::int32_t device_type, device_id;
  std::int32_t dims;
  std::uint8_t type_code, type_bits;
  std::uint16_t type_lanes;
  const std::int64_t* shape;
  const std::int64_t* strides;  // in elements; null where packed
  std::uint64_t byte_offset;
};

struct Versioned {
  std::uint32_t major, minor;
  void* manager_context;
  void (*deleter)(void*);
  std::uint64_t flags;
  DLTensor tensor;
};

constexpr std::uint64_t kReadOnly = 1;

bool is_packed(const DLTensor& tensor) {
  return tensor.strides == nullptr ||
         mucudnn::is_packed(tensor.shape, tensor.strides, tensor.dims, Layout::nchw);
}

// Reads what `_native.pyi` documents. The capsule keeps the ownership of the tensor.
py::tuple read_capsule(const py::capsule& capsule) {
  const std::string name = capsule.name() == nullptr ? "" : capsule.name();
  bool read_only = false;
  const DLTensor* tensor = nullptr;
  if (name == "dltensor") {
    tensor = static_cast<const DLTensor*>(capsule.get_pointer());
  } else if (name == "dltensor_versioned") {
    const auto* versioned = static_cast<const Versioned*>(capsule.get_pointer());
    if (versioned->major != 1) reject("DLPack version ", versioned->major);
    read_only = (versioned->flags & kReadOnly) != 0;
    tensor = &versioned->tensor;
  } else {
    reject("a capsule named '", name, "' instead of a DLPack tensor");
  }
  py::tuple shape(tensor->dims);
  for (int axis = 0; axis < tensor->dims; ++axis) shape[axis] = tensor->shape[axis];
  const std::string type = joined(tensor->type_code, ":", tensor->type_bits, ":", tensor->type_lanes);
  return py::make_tuple(reinterpret_cast<std::uintptr_t>(tensor->data) + tensor->byte_offset, shape, type,
                        is_packed(*tensor), read_only);
}

}  // namespace

void bind_dlpack(py::module_& module) { module.def("read_dlpack", &read_capsule, "capsule"_a); }

}  // namespace mucudnn::python
