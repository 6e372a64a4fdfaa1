#include "core/options.hpp"

#include <pybind11/stl.h>

#include "bindings/bindings.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace mucudnn::python {
namespace {

py::object parse_setting(const std::string& variable, const std::string& text) {
  for (const Setting& setting : settings()) {
    if (setting.variable != variable) continue;
    const Setting::Value value = setting.parse(text);
    if (setting.kind == Setting::Kind::size && value.number == kNoLimit) return py::none();
    if (setting.kind == Setting::Kind::size || setting.kind == Setting::Kind::threads)
      return py::int_(value.number);
    return py::str(value.text);
  }
  throw py::key_error(variable);
}

}  // namespace

void bind_settings(py::module_& module) {
  module.def("settings", [] {
    py::dict meanings;
    for (const Setting& setting : settings()) meanings[setting.variable] = setting.meaning;
    return meanings;
  });
  module.def("parse_setting", &parse_setting, "variable"_a, "text"_a);
  module.def("parse_size", &parse_size, "text"_a);
  module.def("parse_threads", &parse_threads, "text"_a);
}

}  // namespace mucudnn::python
