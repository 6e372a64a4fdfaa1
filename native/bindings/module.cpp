#include "bindings/bindings.hpp"

PYBIND11_MODULE(_native, module) {
  mucudnn::python::bind_problem(module);
  mucudnn::python::bind_plan(module);
  mucudnn::python::bind_memory(module);
  mucudnn::python::bind_engine(module);
  mucudnn::python::bind_dlpack(module);
  mucudnn::python::bind_planner(module);
  mucudnn::python::bind_race(module);
  mucudnn::python::bind_settings(module);
}
