#include <algorithm>
#include <limits>
#include <stdexcept>
#include <vector>

#include <pybind11/numpy.h>

#include "bindings/bindings.hpp"
#include "core/text.hpp"
#include "cudnn/tuning/values.hpp"

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

// Copies the values to the device, behind the `first` that are there.
void write(const Memory& memory, const std::string& type_name, const Values& values, std::size_t first) {
  const DataType type = data_type_named(type_name);
  const auto count = static_cast<std::size_t>(values.size());
  const std::size_t before = bytes_for(memory, type, first);
  const std::size_t bytes = bytes_for(memory, type, first + count) - before;
  const double* from = values.data();
  const py::gil_scoped_release release;
  std::vector<char> staging(bytes);
  from_double(type, from, staging.data(), count);
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
      .def("read", &read, "data_type"_a, "count"_a, "first"_a = 0)
      .def("write", &write, "data_type"_a, "values"_a, "first"_a = 0);
}

}  // namespace mucudnn::python
