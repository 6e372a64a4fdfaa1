// A program written against cudnn-frontend, as its samples are: it knows of no library but cuDNN's.
//
// usage: frontend_client OPERATION CHOICE LAYOUT TYPE n,c,[d,]h,w k,c,[t,]r,s padding,stride
//   OPERATION  forward, backward_data, backward_filter or fused (relu(forward + residual + bias))
//   CHOICE     a, b, fallback (every plan of the mode), json, engine (every engine by its number, with every
//              value of its knobs)
// Tensors come on stdin in the order x, w, y, residual, bias; for each plan that is built, its name goes to
// stderr and the output to stdout.
#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using Sizes = std::vector<int64_t>;

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace {

void check(const std::string& what, bool good, const std::string& message) {
  if (good) return;
  std::fprintf(stderr, "%s: %s\n", what.c_str(), message.c_str());
  std::exit(1);
}
void check(const std::string& what, fe::error_t status) {
  check(what, status.is_good(), status.get_message());
}

Sizes numbers(const char* text) {
  Sizes values;
  for (char* end = nullptr; *text != '\0'; text = *end == ',' ? end + 1 : end) {
    values.push_back(std::strtoll(text, &end, 10));
  }
  return values;
}

int64_t count(const Sizes& sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) product *= size;
  return product;
}

struct Problem {
  std::string operation;
  bool channels_last;
  fe::DataType_t type;
  Sizes x, w, y, bias;
  int64_t padding, stride;

  Sizes strides(const Sizes& sizes) const {
    Sizes result(sizes.size());
    int64_t step = channels_last ? sizes[1] : 1;
    for (size_t axis = sizes.size() - 1; axis > 1; --axis) {
      result[axis] = step;
      step *= sizes[axis];
    }
    result[1] = channels_last ? 1 : step;
    result[0] = channels_last ? step : step * sizes[1];
    return result;
  }
  size_t bytes(const Sizes& sizes) const {
    return static_cast<size_t>(count(sizes)) * (type == fe::DataType_t::FLOAT ? 4 : 2);
  }
};

struct Built {
  std::shared_ptr<fe::graph::Graph> graph;
  Tensor x, w, y, residual, bias, output;
};

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
    built.output->set_dim(problem.y).set_stride(problem.strides(problem.y));
  }
  if (problem.operation == "fused") {
    const auto add = fe::graph::Pointwise_attributes().set_mode(fe::PointwiseMode_t::ADD);
    built.residual = tensor("residual", problem.y);
    built.bias = tensor("bias", problem.bias);
    built.output = graph.pointwise(built.output, built.residual, add);
    built.output = graph.pointwise(built.output, built.bias, add);
    built.output = graph.pointwise(built.output,
                                   fe::graph::Pointwise_attributes().set_mode(fe::PointwiseMode_t::RELU_FWD));
    built.output->set_dim(problem.y).set_stride(problem.strides(problem.y));
  }
  built.output->set_output(true);
  check("validate", graph.validate());
  return built;
}

using Memory = std::vector<char>;

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

// Every plan of a heuristic mode.
void run_heuristics(cudnnHandle_t handle, const Problem& problem, fe::HeurMode_t mode,
                    std::vector<Memory>& inputs) {
  Built built = build(problem);
  check("build graph", built.graph->build_operation_graph(handle));
  check("heuristics", built.graph->create_execution_plans({mode}));
  check("support", built.graph->check_support());
  const int64_t plans = built.graph->get_execution_plan_count();
  check("plans", plans > 0, "none");
  for (int64_t i = 0; i < plans; ++i) {
    check("plan", built.graph->build_plan_at_index(i));
    tell_name(*built.graph);
    execute(handle, problem, built, inputs);
  }
}

using Choices = std::unordered_map<fe::KnobType_t, int64_t>;

// One of each knob's values, in every way.
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

// A plan that goes through its serialized form. The warm-up of a deserialized plan, which can be turned off,
// captures a CUDA graph over memory that is too small to run in.
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
  cudnn_frontend::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW);
  check("dlopen", cudnn_frontend::cudnn_dlhandle != nullptr, "no libcudnn.so.9");

  Problem problem;
  problem.operation = arguments[1];
  problem.channels_last = std::string(arguments[3]) == "nhwc";
  const std::map<std::string, fe::DataType_t> types = {
      {"f32", fe::DataType_t::FLOAT}, {"f16", fe::DataType_t::HALF}, {"bf16", fe::DataType_t::BFLOAT16}};
  problem.type = types.at(arguments[4]);
  problem.x = numbers(arguments[5]);
  problem.w = numbers(arguments[6]);
  problem.padding = numbers(arguments[7])[0];
  problem.stride = numbers(arguments[7])[1];
  problem.y = {problem.x[0], problem.w[0]};
  problem.bias = Sizes(problem.x.size(), 1);
  problem.bias[1] = problem.w[0];
  for (size_t axis = 2; axis < problem.x.size(); ++axis) {
    problem.y.push_back((problem.x[axis] + 2 * problem.padding - problem.w[axis]) / problem.stride + 1);
  }

  std::vector<Memory> inputs;
  for (const Sizes& sizes : {problem.x, problem.w, problem.y, problem.y, problem.bias}) {
    inputs.emplace_back(problem.bytes(sizes));
    check("stdin", std::fread(inputs.back().data(), 1, inputs.back().size(), stdin) == inputs.back().size(),
          "too short");
  }
  cudnnHandle_t handle = nullptr;
  check("handle", fe::detail::create_handle(&handle) == CUDNN_STATUS_SUCCESS, "cudnnCreate");
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
