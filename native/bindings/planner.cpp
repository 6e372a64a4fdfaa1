#include <pybind11/stl.h>

#include "bindings/bindings.hpp"
#include "bindings/kernel.hpp"
#include "cudnn/context.hpp"
#include "cudnn/engine.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace mucudnn::python {
namespace {

// A library that makes execution plans for a device that is described and need not be present.
class PyPlanner {
 public:
  PyPlanner(const std::string& path, const std::string& device_properties)
      : library_(std::make_shared<Library>(path)),
        device_(make_host_device()),
        engine_(std::make_shared<const Context>(library_, device_properties), *device_,
                Engine::GraphEngines::for_all) {}

  std::string library() const { return library_->name(); }

  Enumeration enumerate(const Kernel& kernel) const { return engine_.enumerate(kernel); }

  std::size_t workspace(const Kernel& kernel, const std::string& algorithm, std::int64_t x_channels,
                        std::int64_t y_channels) const {
    return engine_.prepare(kernel, algorithm, {x_channels, y_channels})->workspace();
  }

 private:
  std::shared_ptr<Library> library_;
  std::unique_ptr<Device> device_;  // nothing runs on it
  Engine engine_;
};

}  // namespace

void bind_planner(py::module_& module) {
  py::class_<PyPlanner>(module, "Planner")
      .def(py::init<const std::string&, const std::string&>(), "library"_a, "device_properties"_a)
      .def_property_readonly("library", &PyPlanner::library)
      .def("enumerate", &PyPlanner::enumerate, "kernel"_a)
      .def("workspace", &PyPlanner::workspace, "kernel"_a, "algorithm"_a, "x_channels"_a = 0,
           "y_channels"_a = 0);
}

}  // namespace mucudnn::python
