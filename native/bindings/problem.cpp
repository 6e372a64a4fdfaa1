#include "core/tensors.hpp"

#include <map>
#include <optional>
#include <variant>
#include <vector>

#include <pybind11/stl.h>

#include "bindings/bindings.hpp"
#include "core/text.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace mucudnn::python {
namespace {

using Sizes = std::vector<std::int64_t>;
using SizeOrSizes = std::variant<std::int64_t, Sizes>;

Problem::Sizes to_sizes(const char* name, const SizeOrSizes& value, int dims, std::int64_t neutral) {
  Problem::Sizes sizes{neutral, neutral, neutral};
  if (const auto* all = std::get_if<std::int64_t>(&value)) {
    for (int axis = 3 - dims; axis < 3; ++axis) sizes[axis] = *all;
    return sizes;
  }
  const Sizes& each = std::get<Sizes>(value);
  if (static_cast<int>(each.size()) != dims) {
    reject(name, " has ", each.size(), " sizes, the input has ", dims);
  }
  for (int axis = 0; axis < dims; ++axis) sizes[3 - dims + axis] = each[axis];
  return sizes;
}

Problem make_problem(std::int64_t mini_batch, std::int64_t in_channels, std::int64_t out_channels,
                     const Sizes& input, const Sizes& kernel, const SizeOrSizes& stride,
                     const SizeOrSizes& padding, const SizeOrSizes& dilation, std::int64_t groups,
                     const std::string& data_type, const std::string& layout, const std::string& math,
                     const std::string& epilogue) {
  Problem p;
  p.dims = static_cast<int>(input.size());
  if (p.dims != 2 && p.dims != 3) {
    reject("input has ", input.size(), " sizes: it must have 2 or 3");
  }
  read_types(data_type, p);
  read_layouts(layout, p);
  p.math = math_named(math);
  p.epilogue = parse_epilogue(epilogue);
  p.groups = groups;
  p.mini_batch = mini_batch;
  p.in_channels = in_channels;
  p.out_channels = out_channels;
  p.input = to_sizes("input", input, p.dims, 1);
  p.kernel = to_sizes("kernel", kernel, p.dims, 1);
  p.stride = to_sizes("stride", stride, p.dims, 1);
  p.padding = to_sizes("padding", padding, p.dims, 0);
  p.dilation = to_sizes("dilation", dilation, p.dims, 1);
  // The output is computed only if the strides are in range. Otherwise validate() names the wrong value.
  bool in_range = true;
  for (int axis = 3 - p.dims; axis < 3; ++axis) in_range = in_range && p.stride[axis] >= 1;
  if (in_range) p.output = output_of(p);
  validate(p);
  return p;
}

Problem replace(const Problem& problem, std::optional<std::int64_t> mini_batch,
                std::optional<std::string> data_type, std::optional<std::string> layout,
                std::optional<std::string> math) {
  Problem copy = problem;
  if (mini_batch) copy.mini_batch = *mini_batch;
  if (data_type) read_types(*data_type, copy);
  if (layout) read_layouts(*layout, copy);
  if (math) copy.math = math_named(*math);
  validate(copy);
  return copy;
}

std::map<std::string, std::string> layouts(const Problem& p) {
  return {{"x", name_of(p.layout)}, {"w", name_of(p.layout_of_w())}, {"y", name_of(p.layout_of_y())}};
}

// Returns the sizes of the operands, in the order of the operations that read them.
std::vector<std::int64_t> operand_elements(const Problem& problem) {
  std::vector<std::int64_t> elements;
  for (const Pointwise& operation : problem.epilogue) {
    if (operand_of(operation.kind) != Operand::none)
      elements.push_back(problem.operand_elements(operation.kind));
  }
  return elements;
}

py::tuple parse_text(const std::string& text, std::int64_t mini_batch, const std::string& data_type,
                     const std::string& layout, const std::string& math) {
  Problem defaults;
  defaults.mini_batch = mini_batch;
  defaults.data_type = data_type_named(data_type);
  defaults.layout = layout_named(layout);
  defaults.math = math_named(math);
  const Descriptor descriptor = parse_descriptor(text, defaults);
  return py::make_tuple(descriptor.problem, descriptor.name, descriptor.count);
}

}  // namespace

void bind_problem(py::module_& module) {
  const auto sizes = [](Problem::Sizes Problem::* member) {
    return [member](const Problem& p) { return py::tuple(py::cast(spatial_sizes(p, p.*member))); };
  };
  py::class_<Problem>(module, "Problem")
      .def(py::init(&make_problem), py::kw_only(), "mini_batch"_a, "in_channels"_a, "out_channels"_a,
           "input"_a, "kernel"_a, "stride"_a = 1, "padding"_a = 0, "dilation"_a = 1, "groups"_a = 1,
           "data_type"_a = "f32", "layout"_a = "nchw", "math"_a = "default", "epilogue"_a = "")
      .def_property_readonly("data_type", [](const Problem& p) { return name_of(p.data_type); })
      .def_property_readonly("types", &types_text)
      .def_property_readonly("y_type", [](const Problem& p) { return name_of(p.type_of_y()); })
      .def_property_readonly("layout", &layouts_text)
      .def_property_readonly("layouts", &layouts)
      .def_property_readonly("math", [](const Problem& p) { return name_of(p.math); })
      .def_readonly("dims", &Problem::dims)
      .def_readonly("groups", &Problem::groups)
      .def_readonly("mini_batch", &Problem::mini_batch)
      .def_readonly("in_channels", &Problem::in_channels)
      .def_readonly("out_channels", &Problem::out_channels)
      .def_property_readonly("input", sizes(&Problem::input))
      .def_property_readonly("output", sizes(&Problem::output))
      .def_property_readonly("kernel", sizes(&Problem::kernel))
      .def_property_readonly("stride", sizes(&Problem::stride))
      .def_property_readonly("padding", sizes(&Problem::padding))
      .def_property_readonly("dilation", sizes(&Problem::dilation))
      .def_property_readonly("x_elements", [](const Problem& p) { return p.mini_batch * p.x_sample(); })
      .def_property_readonly("w_elements", &Problem::w_elements)
      .def_property_readonly("y_elements", [](const Problem& p) { return p.mini_batch * p.y_sample(); })
      .def_property_readonly("epilogue", [](const Problem& p) { return to_text(p.epilogue); })
      .def_property_readonly("operand_elements", &operand_elements)
      .def_property_readonly("element_size", [](const Problem& p) { return size_of(p.data_type); })
      .def_property_readonly("y_element_size", [](const Problem& p) { return size_of(p.type_of_y()); })
      .def_property_readonly("flops", &Problem::flops)
      .def("replace", &replace, py::kw_only(), "mini_batch"_a = py::none(), "data_type"_a = py::none(),
           "layout"_a = py::none(), "math"_a = py::none())
      .def("__eq__",
           [](const Problem& p, const py::object& other) {
             return py::isinstance<Problem>(other) && p == other.cast<const Problem&>();
           })
      .def("__hash__", [](const Problem& p) { return py::hash(py::str(to_text(p))); })
      .def("__str__", [](const Problem& p) { return to_text(p); })
      .def("__repr__", [](const Problem& p) { return "<Problem " + to_text(p) + ">"; });

  module.def("parse_descriptor", &parse_text, "text"_a, py::kw_only(), "mini_batch"_a = 1,
             "data_type"_a = "f32", "layout"_a = "nchw", "math"_a = "default");
}

}  // namespace mucudnn::python
