// A program written against cudnn-frontend, like its samples. It uses cuDNN and no other library.
//
// usage: frontend_client OPERATION CHOICE LAYOUT TYPE ... as in frontend_problem.h
//   OPERATION  forward, backward_data, backward_filter, bias (forward + bias), bias_relu, fused (relu(forward
//   +
//              residual + bias)) or swapped (relu(bias + (residual + forward)))
//   CHOICE     a, b, fallback (every plan of the heuristic mode), json, engine (every engine by its number,
//              with every value of its knobs)
// For each plan the program prints the name to stderr and the output to stdout.
#include "frontend_problem.h"

using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

namespace {

void check(const std::string& what, fe::error_t status) {
  ::check(what, status.is_good(), status.get_message());
}

struct Built {
  std::shared_ptr<fe::graph::Graph> graph;
  Tensor x, w, y, residual, bias, output;
};

template <typename MakeTensor>
void add_epilogue(const Problem& problem, Built& built, const MakeTensor& tensor) {
  const auto add = fe::graph::Pointwise_attributes().set_mode(fe::PointwiseMode_t::ADD);
  const bool is_swapped = problem.operation == "swapped";
  const auto sum = [&](const Tensor& operand) {
    built.output = is_swapped ? built.graph->pointwise(operand, built.output, add)
                              : built.graph->pointwise(built.output, operand, add);
  };
  if (problem.operation == "fused" || is_swapped) sum(built.residual = tensor("residual", problem.y));
  sum(built.bias = tensor("bias", problem.bias));
  if (problem.operation == "bias") return;
  built.output = built.graph->pointwise(
      built.output, fe::graph::Pointwise_attributes().set_mode(fe::PointwiseMode_t::RELU_FWD));
}

Built build(const Problem& problem) {
  Built built;
  built.graph = std::make_shared<fe::graph::Graph>();
  fe::graph::Graph& graph = *built.graph;
  graph.set_io_data_type(problem.type)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const auto tensor = [&](const char* name, const Sizes& sizes) {
    return graph.tensor(
        fe::graph::Tensor_attributes().set_name(name).set_dim(sizes).set_stride(problem.strides(sizes)));
  };
  const auto geometry = [&](auto attributes) {
    const size_t dims = problem.x.size() - 2;
    return attributes.set_padding(Sizes(dims, problem.padding))
        .set_stride(Sizes(dims, problem.stride))
        .set_dilation(Sizes(dims, 1));
  };
  if (problem.operation == "backward_data") {
    built.w = tensor("w", problem.w);
    built.y = tensor("dy", problem.y);
    built.output = graph.conv_dgrad(built.y, built.w, geometry(fe::graph::Conv_dgrad_attributes()));
    built.output->set_dim(problem.x).set_stride(problem.strides(problem.x));
  } else if (problem.operation == "backward_filter") {
    built.x = tensor("x", problem.x);
    built.y = tensor("dy", problem.y);
    built.output = graph.conv_wgrad(built.y, built.x, geometry(fe::graph::Conv_wgrad_attributes()));
    built.output->set_dim(problem.w).set_stride(problem.strides(problem.w));
  } else {
    built.x = tensor("x", problem.x);
    built.w = tensor("w", problem.w);
    built.output = graph.conv_fprop(built.x, built.w, geometry(fe::graph::Conv_fprop_attributes()));
    if (problem.operation != "forward") add_epilogue(problem, built, tensor);
    // Only the output gets strides: cudnn-frontend chooses those of the tensors between the operations.
    built.output->set_dim(problem.y).set_stride(problem.strides(problem.y));
  }
  built.output->set_output(true);
  check("validate", graph.validate());
  return built;
}

void tell_name(fe::graph::Graph& graph) {
  std::string name;
  check("name", graph.get_plan_name(name));
  std::fprintf(stderr, "%s\n", name.c_str());
}

void execute(cudnnHandle_t handle, const Problem& problem, Built& built, std::vector<Memory>& inputs) {
  const Tensor tensors[] = {built.x, built.w, built.y, built.residual, built.bias};
  std::unordered_map<Tensor, void*> pack;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (tensors[i]) pack[tensors[i]] = inputs[i].data();
  }
  Memory output(problem.bytes(built.output->get_dim()));
  pack[built.output] = output.data();
  int64_t size = 0;
  check("workspace size", built.graph->get_workspace_size(size));
  std::vector<char> workspace(static_cast<size_t>(size));
  check("execute", built.graph->execute(handle, pack, workspace.data()));
  std::fwrite(output.data(), 1, output.size(), stdout);
}

// Runs every plan of a heuristic mode.
void run_heuristics(cudnnHandle_t handle, const Problem& problem, fe::HeurMode_t mode,
                    std::vector<Memory>& inputs) {
  Built built = build(problem);
  check("build graph", built.graph->build_operation_graph(handle));
  check("heuristics", built.graph->create_execution_plans({mode}));
  check("support", built.graph->check_support());
  const int64_t plans = built.graph->get_execution_plan_count();
  ::check("plans", plans > 0, "none");
  for (int64_t i = 0; i < plans; ++i) {
    check("plan", built.graph->build_plan_at_index(i));
    tell_name(*built.graph);
    execute(handle, problem, built, inputs);
  }
}

using Choices = std::unordered_map<fe::KnobType_t, int64_t>;

// Returns every combination of the knobs' values.
std::vector<Choices> all_choices(const std::vector<fe::Knob>& knobs) {
  std::vector<Choices> all = {{}};
  for (const fe::Knob& knob : knobs) {
    std::vector<Choices> more;
    for (const Choices& choices : all) {
      for (int64_t value = knob.minValue; value <= knob.maxValue; value += knob.stride) {
        more.push_back(choices);
        more.back()[knob.type] = value;
      }
    }
    all = more;
  }
  return all;
}

void run_engines(cudnnHandle_t handle, const Problem& problem, std::vector<Memory>& inputs) {
  Built listed = build(problem);
  check("build graph", listed.graph->build_operation_graph(handle));
  int64_t engines = 0;
  check("count", listed.graph->get_engine_count(engines));
  for (int64_t id = 0; id < engines; ++id) {
    std::vector<fe::Knob> knobs;
    if (listed.graph->get_knobs_for_engine(id, knobs).is_bad()) continue;
    for (const Choices& choices : all_choices(knobs)) {
      Built built = build(problem);
      check("build graph", built.graph->build_operation_graph(handle));
      check("engine", built.graph->create_execution_plan(id, choices));
      check("support", built.graph->check_support());
      check("plan", built.graph->build_plans());
      tell_name(*built.graph);
      execute(handle, problem, built, inputs);
    }
  }
}

// Serializes a plan, deserializes it and runs it. It turns the warm-up of a deserialized plan off, because
// the warm-up captures a CUDA graph over memory that is too small to run in.
void run_serialized(cudnnHandle_t handle, const Problem& problem, std::vector<Memory>& inputs) {
  Built built = build(problem);
  check("build", built.graph->build(handle, {fe::HeurMode_t::A}));
  tell_name(*built.graph);
  std::vector<uint8_t> text;
  check("serialize", built.graph->serialize(text));
  Built again = built;
  again.graph = std::make_shared<fe::graph::Graph>();
  constexpr bool kEnforcePrecompiled = true, kWarmUp = false;
  check("deserialize", again.graph->deserialize(handle, text, kEnforcePrecompiled, kWarmUp));
  execute(handle, problem, again, inputs);
}

}  // namespace

int main(int count_of_arguments, char** arguments) {
  check("usage", count_of_arguments == 8, "see the source");
  const Problem problem = read_problem(arguments);
  std::vector<Memory> inputs = read_tensors(problem);
  const cudnnHandle_t handle = open_cudnn();
  const std::string choice = arguments[2];
  if (choice == "engine") {
    run_engines(handle, problem, inputs);
  } else if (choice == "json") {
    run_serialized(handle, problem, inputs);
  } else {
    const std::map<std::string, fe::HeurMode_t> modes = {
        {"a", fe::HeurMode_t::A}, {"b", fe::HeurMode_t::B}, {"fallback", fe::HeurMode_t::FALLBACK}};
    run_heuristics(handle, problem, modes.at(choice), inputs);
  }
  check("handle", fe::detail::destroy_handle(handle) == CUDNN_STATUS_SUCCESS, "cudnnDestroy");
  return 0;
}
