// The conversion of kernels between Python and C++.
#pragma once

#include <pybind11/pybind11.h>

#include "core/kernel.hpp"

namespace pybind11::detail {

// A Python object is a kernel if it has the attributes `problem` and `pass_`. C++ returns the package's
// Kernel.
template <>
struct type_caster<mucudnn::Kernel> {
  PYBIND11_TYPE_CASTER(mucudnn::Kernel, const_name("mucudnn.problems.kernels.Kernel"));

  // Throws std::invalid_argument if the pass is unknown.
  bool load(handle source, bool /*convert*/) {
    const object problem = getattr(source, "problem", none());
    const object pass = getattr(source, "pass_", none());
    if (!isinstance<mucudnn::Problem>(problem) || !isinstance<str>(pass)) return false;
    value = {problem.cast<mucudnn::Problem>(), mucudnn::pass_named(pass.cast<std::string>())};
    return true;
  }

  static handle cast(const mucudnn::Kernel& kernel, return_value_policy /*policy*/, handle /*parent*/) {
    const object type = module_::import("mucudnn.problems.kernels").attr("Kernel");
    return type(kernel.problem, mucudnn::name_of(kernel.pass)).release();
  }
};

}  // namespace pybind11::detail
