#include <algorithm>
#include <limits>
#include <stdexcept>
#include <vector>

#include <pybind11/numpy.h>

#include "bindings/bindings.hpp"
#include "core/text.hpp"
#include "cudnn/values.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace mucudnn::python {
namespace {

using Values = py::array_t<double, py::array::c_style | py::array::forcecast>;

std::size_t bytes_for(const Memory& memory, DataType type, std::size_t count) {
  const std::size_t item = size_of(type);
  if (count > memory.size() / item) {
    reject(count, " values of ", name_of(type), " do not fit into ", memory.size(), " bytes");
  }
  return count * item;
}

// Calls `make(pointer)` to prepare `count` values in host memory, and copies them to the device, behind the
// `first` that are there.
template <typename Make>
void store(const Memory& memory, const std::string& type_name, std::size_t count, std::size_t first,
           Make make) {
  const DataType type = data_type_named(type_name);
  const std::size_t before = bytes_for(memory, type, first);
  const std::size_t bytes = bytes_for(memory, type, first + count) - before;
  const py::gil_scoped_release release;
  std::vector<char> staging(bytes);
  make(type, staging.data());
  memory.device().copy_from_host(memory.data() + before, staging.data(), bytes);
}

void store_random(const Memory& memory, const std::string& type_name, std::size_t count, std::uint64_t seed) {
  const DataType type = data_type_named(type_name);
  const std::size_t bytes = bytes_for(memory, type, count);
  const py::gil_scoped_release release;
  fill_random(memory.device(), type, memory.data(), bytes, seed);
}

Values read(const Memory& memory, const std::string& type_name, std::size_t count, std::size_t first) {
  const DataType type = data_type_named(type_name);
  const std::size_t before = bytes_for(memory, type, first);
  const std::size_t bytes = bytes_for(memory, type, first + count) - before;
  Values values(static_cast<py::ssize_t>(count));
  if (count == 0) return values;  // an empty array has no address to copy to
  double* out = values.mutable_data();
  const py::gil_scoped_release release;
  std::vector<char> staging(bytes);
  memory.device().copy_to_host(staging.data(), memory.data() + before, bytes);
  to_double(type, staging.data(), out, count);
  return values;
}

}  // namespace

void bind_memory(py::module_& module) {
  py::class_<Memory, std::shared_ptr<Memory>>(module, "Memory")
      .def_property_readonly("size", &Memory::size)
      .def("fill_random", &store_random, "data_type"_a, "count"_a, "seed"_a)
      .def(
          "fill",
          [](const Memory& memory, const std::string& type, std::size_t count, double value) {
            store(memory, type, count, 0, [=](DataType t, char* to) { fill(t, to, count, value); });
          },
          "data_type"_a, "count"_a, "value"_a)
      .def("read", &read, "data_type"_a, "count"_a, "first"_a = 0)
      .def(
          "write",
          [](const Memory& memory, const std::string& type, const Values& values, std::size_t first) {
            const double* from = values.data();
            const auto count = static_cast<std::size_t>(values.size());
            store(memory, type, count, first, [=](DataType t, char* to) { from_double(t, from, to, count); });
          },
          "data_type"_a, "values"_a, "first"_a = 0);
}

}  // namespace mucudnn::python
