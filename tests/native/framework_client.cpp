// A program that convolves like PyTorch and XLA, through cudnn-frontend's wrappers of cuDNN's descriptors.
//
// usage: framework_client OPERATION CHOICE LAYOUT TYPE ... [NAME=VALUE ...], as in frontend_problem.h
//
// OPERATION may also be relu: relu(forward + bias). PyTorch's fused graphs always add a tensor; for relu this
// is the output, with a factor of 0.
// CHOICE torch makes the same call calls=N times. The first call chooses an execution plan and keeps it: the
// first plan of the heuristics that can be built and run, or with benchmark=1 the fastest. deterministic=1
// and tf32=1 are PyTorch's switches. memory=BYTES is the memory left for workspaces. CHOICE xla runs each
// engine that the heuristics name, or with algorithm=NAME one engine with its knobs. With rebuilds=1 it also
// makes each engine again by its number and knobs, and runs it in the workspace that the first plan named.
//
// For each run the program prints to stderr the name of the plan, its workspace, and the number of plans
// built so far. The outputs go to stdout.
#define CUDNN_FRONTEND_SKIP_JSON_LIB  // halves the time to compile
#include <cudnn_frontend_EngineConfigGenerator.h>
#include <cudnn_frontend_find_plan.h>
#include <cudnn_frontend_get_plan.h>

#include "frontend_problem.h"

namespace {

struct OutOfMemory : std::runtime_error {
  OutOfMemory() : std::runtime_error("no memory for the workspace") {}
};

struct Options {
  std::map<std::string, std::string> values;

  int64_t number(const char* name, int64_t otherwise) const {
    const auto entry = values.find(name);
    return entry == values.end() ? otherwise : std::strtoll(entry->second.c_str(), nullptr, 10);
  }
};

// One convolution, with its tensors.
struct Convolution {
  cudnnHandle_t handle;
  Problem problem;
  std::vector<Memory> tensors;
  int built = 0;

  cudnnBackendDescriptorType_t operation() const {
    if (problem.operation == "backward_data")
      return CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
    if (problem.operation == "backward_filter")
      return CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR;
    return CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR;
  }

  Memory& output() {
    return tensors[problem.operation == "backward_data" ? 0 : problem.operation == "backward_filter" ? 1 : 2];
  }

  bool is_fused() const { return problem.operation == "fused" || problem.operation == "relu"; }
  Memory& added() { return problem.operation == "relu" ? output() : tensors[3]; }

  fe::OperationGraph graph_of(const std::vector<const fe::Operation*>& operations) const {
    auto list = operations;
    return fe::OperationGraphBuilder()
        .setHandle(handle)
        .setOperationGraph(static_cast<int64_t>(list.size()), list.data())
        .build();
  }

  // Destroys the descriptors of tensors and operations before it returns, like the frameworks.
  fe::OperationGraph graph(int64_t alignment) const {
    const auto described = [&](char id, const Sizes& sizes, fe::DataType_t type, bool is_virtual) {
      const Sizes strides = problem.strides(sizes);
      const auto dims = static_cast<int64_t>(sizes.size());
      return fe::TensorBuilder()
          .setDim(dims, sizes.data())
          .setStrides(dims, strides.data())
          .setId(id)
          .setAlignment(alignment)
          .setDataType(type)
          .setVirtual(is_virtual)
          .build();
    };
    const auto tensor = [&](char id, const Sizes& sizes) {
      return described(id, sizes, problem.type, false);
    };
    const auto intermediate = [&](char id) { return described(id, problem.y, fe::DataType_t::FLOAT, true); };
    const auto dims = static_cast<int64_t>(problem.x.size()) - 2;
    const auto each = [&](int64_t value) { return Sizes(static_cast<size_t>(dims), value); };
    const Sizes padding = each(problem.padding), stride = each(problem.stride), dilation = each(1);
    const auto convolution = fe::ConvDescBuilder()
                                 .setDataType(CUDNN_DATA_FLOAT)
                                 .setMathMode(CUDNN_CROSS_CORRELATION)
                                 .setNDims(dims)
                                 .setStrides(dims, stride.data())
                                 .setPrePadding(dims, padding.data())
                                 .setPostPadding(dims, padding.data())
                                 .setDilation(dims, dilation.data())
                                 .build();
    auto convolved = fe::OperationBuilder(operation())
                         .setxDesc(tensor('x', problem.x))
                         .setyDesc(is_fused() ? intermediate('C') : tensor('y', problem.y))
                         .setwDesc(tensor('w', problem.w))
                         .setcDesc(convolution)
                         .build();
    if (!is_fused()) return graph_of({&convolved});
    const auto function = [](cudnnPointwiseMode_t mode) {
      return fe::PointWiseDescBuilder().setMode(mode).setMathPrecision(CUDNN_DATA_FLOAT).build();
    };
    const auto add = function(CUDNN_POINTWISE_ADD), relu = function(CUDNN_POINTWISE_RELU_FWD);
    constexpr auto kPointwise = CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR;
    auto added = fe::OperationBuilder(kPointwise)
                     .setxDesc(convolved.getOutputTensor())
                     .setbDesc(tensor('z', problem.y))
                     .setyDesc(intermediate('A'))
                     .setpwDesc(add)
                     .setAlpha(1.0f)
                     .setAlpha2(problem.operation == "relu" ? 0.0f : 1.0f)
                     .build();
    auto biased = fe::OperationBuilder(kPointwise)
                      .setxDesc(added.getOutputTensor())
                      .setbDesc(tensor('b', problem.bias))
                      .setyDesc(intermediate('B'))
                      .setpwDesc(add)
                      .build();
    auto rectified = fe::OperationBuilder(kPointwise)
                         .setxDesc(biased.getOutputTensor())
                         .setyDesc(tensor('y', problem.y))
                         .setpwDesc(relu)
                         .build();
    return graph_of({&convolved, &added, &biased, &rectified});
  }

  fe::VariantPack pack(Memory& workspace) {
    void* pointers[] = {tensors[0].data(), tensors[2].data(), tensors[1].data(), added().data(),
                        tensors[4].data()};
    int64_t ids[] = {'x', 'y', 'w', 'z', 'b'};
    const int64_t count = is_fused() ? 5 : 3;
    return fe::VariantPackBuilder()
        .setWorkspacePointer(workspace.empty() ? nullptr : workspace.data())
        .setDataPointers(count, pointers)
        .setUids(count, ids)
        .build();
  }

  // Throws if the workspace does not fit into `memory`, or if the library cannot run the plan.
  void run(const fe::ExecutionPlan& plan, int64_t memory) {
    if (plan.getWorkspaceSize() > memory) throw OutOfMemory();
    run_in(plan, plan.getWorkspaceSize());
  }

  void run_in(const fe::ExecutionPlan& plan, int64_t size) {
    Memory workspace(static_cast<size_t>(size));
    const auto variant_pack = pack(workspace);
    const cudnnStatus_t status =
        fe::detail::execute(handle, plan.get_raw_desc(), variant_pack.get_raw_desc());
    if (status != CUDNN_STATUS_SUCCESS) throw std::runtime_error("status " + std::to_string(status));
    std::fprintf(stderr, "%s %lld %d\n", plan.getTag().c_str(), static_cast<long long>(size), built);
    std::fwrite(output().data(), 1, output().size(), stdout);
  }
};

fe::EngineConfigList heuristics(fe::OperationGraph& graph, cudnnBackendHeurMode_t mode) {
  auto engines = fe::EngineHeuristicsBuilder().setOperationGraph(graph).setHeurMode(mode).build();
  return engines.getEngineConfig(engines.getEngineConfigCount());
}

// --- PyTorch ---

class Torch {
 public:
  Torch(Convolution& convolution, const Options& options)
      : convolution_(convolution),
        memory_(options.number("memory", INT64_MAX)),
        benchmark_(options.number("benchmark", 0) != 0),
        deterministic_(options.number("deterministic", 0) != 0),
        tf32_(options.number("tf32", 0) != 0) {}

  void convolve() {
    if (!kept_.empty()) return convolution_.run(kept_.front(), memory_);
    auto graph = convolution_.graph(16);
    const fe::GeneratorSource sources[] = {source(CUDNN_HEUR_MODE_INSTANT), source(CUDNN_HEUR_MODE_FALLBACK)};
    fe::EngineConfigGenerator generator(2, sources);
    const bool is_computed = benchmark_ ? try_plans(fastest_first(generator, graph))
                                        : try_configs(generator.generate_engine_config(graph), graph);
    check("engine", is_computed, "unable to find one to execute this computation");
  }

 private:
  fe::GeneratorSource source(cudnnBackendHeurMode_t mode) const {
    return [this, mode](fe::OperationGraph& graph) {
      fe::EngineConfigList all = heuristics(graph, mode), kept;
      fe::filter(all, kept, [this](cudnnBackendDescriptor_t config) { return is_filtered(config); });
      return kept;
    };
  }

  bool is_filtered(cudnnBackendDescriptor_t config) const {
    if (deterministic_ && fe::hasNumericalNote<CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC>(config)) return true;
    return !tf32_ && (fe::hasNumericalNote<CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS>(config) ||
                      fe::hasNumericalNote<CUDNN_NUMERICAL_NOTE_TENSOR_CORE>(config));
  }

  bool try_run(fe::ExecutionPlan&& plan) {
    try {
      convolution_.run(plan, memory_);
    } catch (const std::runtime_error&) {  // also the base of the wrappers' exceptions
      return false;
    }
    kept_.push_back(std::move(plan));
    return true;
  }

  bool try_configs(fe::EngineConfigList configs, fe::OperationGraph& graph) {
    for (auto& config : configs) {
      try {
        auto plan = fe::ExecutionPlanBuilder()
                        .setHandle(convolution_.handle)
                        .setEngineConfig(config, graph.getTag())
                        .build();
        ++convolution_.built;
        if (try_run(std::move(plan))) return true;
      } catch (const fe::cudnnException&) {
      }
    }
    return false;
  }

  bool try_plans(fe::executionPlans_t plans) {
    for (auto& plan : plans) {
      if (try_run(std::move(plan))) return true;
    }
    return false;
  }

  // Times the plans on one workspace: the largest that a plan needs, halved until it fits the memory.
  fe::executionPlans_t fastest_first(fe::EngineConfigGenerator& generator, fe::OperationGraph& graph) {
    auto plans =
        generator.cudnnGetPlan(convolution_.handle, graph, [](const fe::ExecutionPlan&) { return false; });
    convolution_.built = static_cast<int>(plans.size());
    int64_t size = 0;
    for (const auto& plan : plans) size = std::max(size, plan.getWorkspaceSize());
    while (size > memory_) size /= 2;
    fe::executionPlans_t fitting;
    for (auto& plan : plans) {
      if (plan.getWorkspaceSize() <= size) fitting.push_back(std::move(plan));
    }
    Memory workspace(static_cast<size_t>(size));
    return fe::time_sorted_plan<fe::CudnnFindSamplingTechnique::CUDNN_FIND_SAMPLE_ONCE>(
        convolution_.handle, std::move(fitting), convolution_.pack(workspace));
  }

  Convolution& convolution_;
  int64_t memory_;
  bool benchmark_, deterministic_, tf32_;
  fe::executionPlans_t kept_;  // empty, or the one plan of this geometry
};

// --- XLA ---

fe::ExecutionPlan built(Convolution& convolution, const fe::OperationGraph& graph,
                        const std::string& algorithm) {
  char* rest = nullptr;
  const int64_t number = std::strtoll(algorithm.c_str() + 3, &rest, 10);  // behind "eng"
  std::map<int64_t, int64_t> choices;
  while (*rest != '\0') {
    const int64_t type = std::strtoll(rest + 2, &rest, 10);  // behind "_k"
    choices[type] = std::strtoll(rest + 1, &rest, 10);
  }
  auto engine = fe::EngineBuilder().setGlobalEngineIdx(number).setOperationGraph(graph).build();
  for (auto& knob : engine.getSupportedKnobs()) {
    const auto chosen = choices.find(knob.getKnobType());
    if (chosen != choices.end()) knob.setChoice(static_cast<uint64_t>(chosen->second));
  }
  auto config = fe::EngineConfigBuilder().setEngine(engine).build();
  ++convolution.built;
  return fe::ExecutionPlanBuilder().setHandle(convolution.handle).setEngineConfig(config).build();
}

void run_as_xla(Convolution& convolution, const Options& options) {
  constexpr int64_t kAlignment = 32;
  auto graph = convolution.graph(kAlignment);
  const auto algorithm = options.values.find("algorithm");
  if (algorithm != options.values.end())
    return convolution.run(built(convolution, graph, algorithm->second), INT64_MAX);
  fe::EngineConfigList configs = heuristics(graph, CUDNN_HEUR_MODE_INSTANT);
  for (auto& config : heuristics(graph, CUDNN_HEUR_MODE_FALLBACK)) configs.push_back(config);
  for (auto& config : configs) {
    const auto plan = fe::ExecutionPlanBuilder()
                          .setHandle(convolution.handle)
                          .setEngineConfig(config, graph.getTag())
                          .build();
    ++convolution.built;
    convolution.run(plan, INT64_MAX);
    if (options.number("rebuilds", 0) == 0) continue;
    const std::string tag = plan.getTag();
    convolution.run_in(::built(convolution, graph, tag.substr(tag.find('_') + 1)), plan.getWorkspaceSize());
  }
}

}  // namespace

int main(int count_of_arguments, char** arguments) {
  check("usage", count_of_arguments >= 8, "see the source");
  Options options;
  for (int i = 8; i < count_of_arguments; ++i) {
    const std::string text = arguments[i];
    const size_t at = text.find('=');
    options.values[text.substr(0, at)] = text.substr(at + 1);
  }
  const Problem problem = read_problem(arguments);
  Convolution convolution{open_cudnn(), problem, read_tensors(problem)};
  if (std::string(arguments[2]) == "xla") {
    run_as_xla(convolution, options);
  } else {
    Torch torch(convolution, options);
    const Memory before = convolution.output();
    for (int64_t call = 0; call < options.number("calls", 1); ++call) {
      convolution.output() = before;
      check("stream", fe::detail::set_stream(convolution.handle, nullptr) == CUDNN_STATUS_SUCCESS, "");
      torch.convolve();
    }
  }
  check("handle", fe::detail::destroy_handle(convolution.handle) == CUDNN_STATUS_SUCCESS, "cudnnDestroy");
  return 0;
}
