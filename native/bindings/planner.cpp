#include <pybind11/stl.h>

#include "bindings/bindings.hpp"
#include "cudnn/graph_engine.hpp"

namespace py = pybind11;

namespace mucudnn::python {
namespace {

// A library that makes execution plans for a device that is described and need not be present.
class PyPlanner {
 public:
  PyPlanner(const std::string& path, const std::string& device_properties)
      : library_(std::make_shared<Library>(path)),
        engine_(make_graph_engine(std::make_shared<const Context>(library_, device_properties))) {}

  std::string library() const { return library_->name(); }

  Enumeration enumerate(const Problem& problem, const std::string& pass) const {
    return engine_->enumerate({problem, pass_named(pass)});
  }

  std::size_t workspace(const Problem& problem, const std::string& pass, const std::string& algorithm) const {
    return engine_->prepare({problem, pass_named(pass)}, algorithm)->workspace();
  }

 private:
  std::shared_ptr<Library> library_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace

void bind_planner(py::module_& module) {
  py::class_<PyPlanner>(module, "Planner")
      .def(py::init<const std::string&, const std::string&>(), py::arg("library"),
           py::arg("device_properties"))
      .def_property_readonly("library", &PyPlanner::library)
      .def("enumerate", &PyPlanner::enumerate, py::arg("problem"), py::arg("pass_"))
      .def("workspace", &PyPlanner::workspace, py::arg("problem"), py::arg("pass_"), py::arg("algorithm"));
  module.attr("NOT_ALLOWED") = kNotAllowed;
}

}  // namespace mucudnn::python
