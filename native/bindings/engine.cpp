#include "cudnn/engine.hpp"

#include <dlfcn.h>

#include <cmath>
#include <limits>
#include <vector>

#include <pybind11/functional.h>

#include "bindings/bindings.hpp"
#include "bindings/kept_filter.hpp"
#include "bindings/kernel.hpp"
#include "bindings/tuples.hpp"
#include "core/accumulation.hpp"
#include "core/channels.hpp"
#include "core/text.hpp"
#include "core/tiles.hpp"
#include "cudnn/context.hpp"
#include "cudnn/dividing/division.hpp"
#include "cudnn/engines/legacy_engine.hpp"
#include "cudnn/library.hpp"
#include "cudnn/tuning/kernel_timer.hpp"
#include "cudnn/tuning/measure.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace mucudnn::python {
namespace {

using Operands = std::vector<const Memory*>;

// `operands` holds one memory for each operation of the epilogue that reads an operand, in order. Throws
// std::invalid_argument if there are more or fewer.
Region to_region(const Problem& problem, const Memory& x, const Memory& w, const Memory& y,
                 const Operands& operands) {
  Region region{{x.data(), w.data(), y.data()}, {x.size(), w.size(), y.size()}};
  auto next = operands.begin();
  for (std::size_t i = 0; i < problem.epilogue.size(); ++i) {
    if (operand_of(problem.epilogue[i].kind) == Operand::none) continue;
    if (next == operands.end()) break;
    region.tensors.operands[i] = (*next)->data();
    region.size.operands[i] = (*next++)->size();
  }
  if (next != operands.end()) reject(to_text(problem), " reads fewer than ", operands.size(), " operands");
  check_sizes(problem, region);
  return region;
}

Scratch to_scratch(const Memory* workspace) {
  return workspace == nullptr ? Scratch{} : Scratch{workspace->data(), workspace->size()};
}

// A pool of handles, so that no two calls use the same handle at the same time. The GIL guards the list,
// because a mutex that another thread holds during a fork would stay locked in the child.
class Handles {
 public:
  explicit Handles(std::shared_ptr<const Library> library) : library_(std::move(library)) {}
  ~Handles() {
    for (const cudnnHandle_t handle : free_) library_->cudnnDestroy(handle);
  }
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;

  // Calls use(handle) without the GIL, which the caller holds. The handle's work goes to `stream`.
  template <typename Use>
  void with(cudaStream_t stream, Use use) {
    const cudnnHandle_t handle = take();
    const Return given_back{*this, handle};
    const py::gil_scoped_release release;
    library_->check(library_->cudnnSetStream(handle, stream), "cudnnSetStream");
    use(handle);
  }

 private:
  struct Return {
    Handles& handles;
    cudnnHandle_t handle;
    ~Return() { handles.free_.push_back(handle); }
  };

  cudnnHandle_t take() {
    cudnnHandle_t handle = nullptr;
    if (!free_.empty()) {
      handle = free_.back();
      free_.pop_back();
      return handle;
    }
    {
      const py::gil_scoped_release release;
      library_->check(library_->cudnnCreate(&handle), "cudnnCreate");
    }
    free_.reserve(++made_);  // so that putting the handle back cannot fail
    return handle;
  }

  const std::shared_ptr<const Library> library_;
  std::vector<cudnnHandle_t> free_;
  std::size_t made_ = 0;
};

class PyDivision;
class PyTimer;

// A library, its device, and the number of threads that it runs with.
class PyEngine {
 public:
  PyEngine(const std::string& path, int threads, bool cuda, const std::string& cudart, bool constant_filters)
      : library_(std::make_shared<Library>(path)),
        is_cuda_(cuda || !library_->is_host()),
        constant_filters_(constant_filters),
        threads_(is_cuda_ ? 1 : threads) {
    if (threads < 1) reject("threads is ", threads, ": it must be at least 1");
    if (constant_filters && is_cuda_) reject("only the host engine keeps filters");
    device_ = is_cuda_ ? make_cuda_device(cudart)
                       : make_host_device(library_->host_description(), library_->host_team);
    context_ = std::make_shared<const Context>(library_, device_->stream());
    // Without a CUDA device the library is the host engine, whose graph API offers its legacy algorithms
    // again.
    using GraphEngines = Engine::GraphEngines;
    engine_ = std::make_unique<Engine>(context_, *device_,
                                       is_cuda_ ? GraphEngines::for_all : GraphEngines::for_fused_and_mixed,
                                       constant_filters);
    handles_ = std::make_unique<Handles>(library_);
  }

  std::string kind() const { return is_cuda_ ? "cudnn" : "host"; }
  std::string device() const { return device_->name(); }
  std::string library() const { return library_->name() + (constant_filters_ ? ", constant filters" : ""); }
  int threads() const { return threads_; }
  std::string driver() const { return device_->driver(); }
  int device_number() const { return device_->number(); }
  std::string device_properties() const { return device_properties_of(*context_); }

  bool is_capturing(std::uintptr_t stream) const {
    return device_->is_capturing(reinterpret_cast<cudaStream_t>(stream));
  }
  std::size_t available_memory() const { return device_->available(); }
  std::size_t bytes_beyond_caches() const { return device_->bytes_beyond_caches(); }
  std::shared_ptr<Memory> allocate(std::size_t size) const {
    return std::make_shared<Memory>(device_, mucudnn::allocate(*device_, size), size);
  }
  std::shared_ptr<Memory> borrow(std::uintptr_t address, std::size_t size) const {
    const std::shared_ptr<char> no_owner;
    return std::make_shared<Memory>(device_,
                                    std::shared_ptr<char>(no_owner, reinterpret_cast<char*>(address)), size);
  }

  Enumeration enumerate(const Kernel& kernel) const { return engine_->enumerate(kernel); }

  Timing measure(const Kernel& kernel, const std::string& algorithm, const Memory& x, const Memory& w,
                 const Memory& y, const Memory* workspace, int repeats, double budget_ms, double hopeless_ms,
                 const Operands& operands, int least_runs, double most_wait_ms) const {
    const Region region = to_region(kernel.problem, x, w, y, operands);
    const py::gil_scoped_release release;
    use_threads();
    return estimate(mucudnn::measure(*engine_, *device_, kernel, algorithm, region, to_scratch(workspace),
                                     repeats, budget_ms, hopeless_ms, least_runs, most_wait_ms),
                    algorithm);
  }

  // Times work of Python that runs on the threads of this engine's team.
  RunTime time(const std::function<void()>& work, int threads) const {
    meet_team();
    return device_->times(work, 1, threads).front();
  }
  ClockReading read_clocks() const { return device_->read_clocks(); }
  // Makes the clocks of all threads of the team known.
  void meet_team() const {
    use_threads();
    if (library_->meet_host_team != nullptr) library_->meet_host_team();
  }
  Patience& patience() const { return device_->patience(); }
  bool is_throttled() const { return device_->is_throttled(); }

  std::unique_ptr<PyDivision> prepare(const Kernel& kernel, const std::vector<Slice>& parts) const;
  std::unique_ptr<PyDivision> prepare_groups(const Kernel& kernel, std::vector<Group> groups,
                                             bool of_inputs) const;

  // Returns the times, and whether too many runs were disturbed.
  std::pair<std::vector<std::vector<double>>, bool> compare(const std::vector<const PyDivision*>& divisions,
                                                            const Memory& x, const Memory& w, const Memory& y,
                                                            const Memory* workspace, int rounds,
                                                            const Operands& operands) const;

 private:
  friend class PyDivision;
  friend class PyTimer;

  // The thread count belongs to the calling thread, so each engine sets its own before it runs.
  void use_threads() const {
    if (library_->is_host()) library_->set_host_threads(threads_);
  }

  std::shared_ptr<Library> library_;
  bool is_cuda_, constant_filters_;
  int threads_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<const Context> context_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Handles> handles_;
};

// A division prepared once. The caller is responsible for the addresses that it runs on. The engine must
// outlive it.
class PyDivision {
 public:
  PyDivision(const PyEngine& engine, const Problem& problem, std::unique_ptr<PreparedKernel> configuration)
      : engine_(engine), problem_(problem), configuration_(std::move(configuration)) {}

  const Problem& problem() const { return problem_; }
  const PreparedKernel& configuration() const { return *configuration_; }
  std::size_t workspace() const { return configuration_->workspace(); }
  std::size_t kept_filter_size() const { return configuration_->kept_filter_size(); }

  std::unique_ptr<PyKeptFilter> keep_filter(std::uintptr_t w) const {
    const py::gil_scoped_release release;
    engine_.use_threads();
    const char* const data = reinterpret_cast<const char*>(w);
    return std::make_unique<PyKeptFilter>(problem_, data,
                                          KeptFilter(*engine_.device_, *configuration_, data));
  }

  // Runs on the engine's own handle and stream.
  void execute(const Memory& x, const Memory& w, const Memory& y, const Memory* workspace, double alpha,
               double beta, const Operands& operands) const {
    const Region region = to_region(problem_, x, w, y, operands);
    const py::gil_scoped_release release;
    engine_.use_threads();
    configuration_->execute(engine_.engine_->handle(),
                            {region.tensors, alpha, beta, {}, engine_.device_->stream()},
                            to_scratch(workspace));
  }

  void run(std::uintptr_t x, std::uintptr_t w, std::uintptr_t y, const Memory* workspace, double alpha,
           double beta, std::uintptr_t stream, const PyKeptFilter* kept, std::uintptr_t bias) const {
    const Tensors tensors{reinterpret_cast<char*>(x), reinterpret_cast<char*>(w), reinterpret_cast<char*>(y)};
    engine_.handles_->with(reinterpret_cast<cudaStream_t>(stream), [&](cudnnHandle_t handle) {
      engine_.use_threads();
      configuration_->execute(handle,
                              {tensors,
                               alpha,
                               beta,
                               {},
                               reinterpret_cast<cudaStream_t>(stream),
                               kept == nullptr ? nullptr : kept->data(),
                               reinterpret_cast<const char*>(bias)},
                              to_scratch(workspace));
    });
  }

 private:
  const PyEngine& engine_;
  const Problem problem_;
  const std::unique_ptr<PreparedKernel> configuration_;
};

std::unique_ptr<PyDivision> PyEngine::prepare(const Kernel& kernel, const std::vector<Slice>& parts) const {
  return std::make_unique<PyDivision>(*this, kernel.problem,
                                      std::make_unique<Division>(*engine_, *device_, kernel, parts));
}

std::unique_ptr<PyDivision> PyEngine::prepare_groups(const Kernel& kernel, std::vector<Group> groups,
                                                     bool of_inputs) const {
  for (Group& group : groups) group.of_inputs = of_inputs;
  return std::make_unique<PyDivision>(*this, kernel.problem,
                                      std::make_unique<ChannelDivision>(*engine_, *device_, kernel, groups));
}

std::pair<std::vector<std::vector<double>>, bool> PyEngine::compare(
    const std::vector<const PyDivision*>& divisions, const Memory& x, const Memory& w, const Memory& y,
    const Memory* workspace, int rounds, const Operands& operands) const {
  std::vector<const PreparedKernel*> configurations;
  Tensors tensors;
  for (const PyDivision* division : divisions) {
    tensors = to_region(division->problem(), x, w, y, operands).tensors;
    configurations.push_back(&division->configuration());
  }
  const py::gil_scoped_release release;
  use_threads();
  InterleavedTimes ran =
      mucudnn::compare(*engine_, *device_, configurations, tensors, to_scratch(workspace), rounds);
  return {std::move(ran.times_ms), ran.is_busy};
}

// A KernelTimer of an engine, which must outlive it.
class PyTimer {
 public:
  PyTimer(const PyEngine& engine, const Kernel& kernel, std::size_t workspace, std::size_t memory_cap)
      : engine_(engine), timer_(*engine.engine_, *engine.device_, kernel, workspace, memory_cap) {}

  Timing measure(std::int64_t micro_batch, const std::string& algorithm, std::int64_t workspace,
                 double hopeless_ms) {
    const py::gil_scoped_release release;
    engine_.use_threads();
    return timer_.measure({micro_batch, algorithm, workspace}, hopeless_ms);
  }

 private:
  const PyEngine& engine_;
  KernelTimer timer_;
};

// Returns the path of a library that is installed next to the extension.
std::string path_next_to_extension(const char* name) {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&path_next_to_extension), &info) == 0 ||
      info.dli_fname == nullptr) {
    throw EngineError("cannot find the folder of the extension");
  }
  const std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/') + 1) + name;
}

}  // namespace

void bind_engine(py::module_& module) {
  py::register_exception<EngineError>(module, "EngineError", PyExc_RuntimeError);
  py::register_exception<UnfinishedError>(module, "UnfinishedError", PyExc_RuntimeError);
  py::class_<Candidate>(module, "Candidate")
      .def_readonly("algorithm", &Candidate::algorithm)
      .def_readonly("status", &Candidate::status)
      .def_readonly("workspace", &Candidate::workspace)
      .def_readonly("notes", &Candidate::notes)
      .def_readonly("is_lasting", &Candidate::is_lasting);
  py::class_<Enumeration>(module, "Enumeration")
      .def_readonly("is_complete", &Enumeration::is_complete)
      .def("__len__", [](const Enumeration& all) { return all.candidates.size(); })
      .def(
          "__iter__",
          [](const Enumeration& all) {
            return py::make_iterator(all.candidates.begin(), all.candidates.end());
          },
          py::keep_alive<0, 1>());

  const auto known = [](double ms) { return std::isnan(ms) ? std::nullopt : std::optional(ms); };
  const auto ms_of = [](std::optional<double> ms) {
    return ms.value_or(std::numeric_limits<double>::quiet_NaN());
  };
  py::class_<RunTime>(module, "RunTime")
      .def(py::init([ms_of](double wall_ms, std::optional<double> cpu_ms, int threads, bool is_throttled) {
             return RunTime{wall_ms, ms_of(cpu_ms), threads, is_throttled};
           }),
           "wall_ms"_a, "cpu_ms"_a = py::none(), "threads"_a = 1, "is_throttled"_a = false)
      .def_readonly("wall_ms", &RunTime::wall_ms)
      .def_property_readonly("cpu_ms", [known](const RunTime& time) { return known(time.cpu_ms); })
      .def_readonly("threads", &RunTime::threads)
      .def_readonly("is_throttled", &RunTime::is_throttled);
  py::class_<Timing>(module, "Timing")
      .def(py::init([ms_of](double time_ms, double wall_ms, std::optional<double> cpu_ms, bool is_busy) {
             return Timing{time_ms, wall_ms, ms_of(cpu_ms), is_busy};
           }),
           "time_ms"_a, "wall_ms"_a, "cpu_ms"_a, "is_busy"_a)
      .def_readonly("time_ms", &Timing::time_ms)
      .def_readonly("wall_ms", &Timing::wall_ms)
      .def_property_readonly("cpu_ms", [known](const Timing& timing) { return known(timing.cpu_ms); })
      .def_readonly("is_busy", &Timing::is_busy);
  py::class_<ClockReading>(module, "ClockReading")
      .def(
          "until",
          [](const ClockReading& before, const ClockReading& after, int threads) {
            return time_between(before, after, threads);
          },
          "after"_a, "threads"_a);
  py::class_<Patience>(module, "Patience")
      .def_property_readonly("ms", &Patience::ms)
      .def("note", &Patience::note, "is_busy"_a, "ms"_a);
  module.def("estimate", &estimate, "runs"_a, "algorithm"_a);
  module.def("find_undisturbed", &find_undisturbed, "runs"_a, "algorithm"_a);
  module.def("comparable_times", &comparable_times, "runs"_a);
  module.def("are_disturbed", &are_disturbed, "runs"_a);
  module.def("second_lowest", &second_lowest, "values"_a);
  module.def("is_decided", &is_decided, "times"_a, "rounds"_a);
  module.attr("MOST_ROUNDS") = kMostRounds;

  py::class_<PyEngine>(module, "Engine")
      .def(py::init<const std::string&, int, bool, const std::string&, bool>(), "library"_a, py::kw_only(),
           "threads"_a = 1, "cuda"_a = false, "cudart"_a = "", "constant_filters"_a = false)
      .def_property_readonly("kind", &PyEngine::kind)
      .def_property_readonly("device", &PyEngine::device)
      .def_property_readonly("library", &PyEngine::library)
      .def_property_readonly("threads", &PyEngine::threads)
      .def_property_readonly("driver", &PyEngine::driver)
      .def_property_readonly("device_number", &PyEngine::device_number)
      .def_property_readonly("available_memory", &PyEngine::available_memory)
      .def_property_readonly("bytes_beyond_caches", &PyEngine::bytes_beyond_caches)
      .def_property_readonly("patience", &PyEngine::patience, py::return_value_policy::reference_internal)
      .def_property_readonly("is_throttled", &PyEngine::is_throttled)
      .def("read_clocks", &PyEngine::read_clocks)
      .def("meet_team", &PyEngine::meet_team)
      .def("time", &PyEngine::time, "work"_a, "threads"_a)
      .def("is_capturing", &PyEngine::is_capturing, "stream"_a)
      .def("device_properties", &PyEngine::device_properties)
      .def("allocate", &PyEngine::allocate, "size"_a)
      .def("borrow", &PyEngine::borrow, "address"_a, "size"_a)
      .def("enumerate", &PyEngine::enumerate, "kernel"_a)
      .def("measure", &PyEngine::measure, "kernel"_a, "algorithm"_a, "x"_a, "w"_a, "y"_a,
           "workspace"_a.none(true), py::kw_only(), "repeats"_a, "budget_ms"_a,
           "hopeless_ms"_a = std::numeric_limits<double>::infinity(), "operands"_a = Operands(),
           "least_runs"_a = kLeastRuns, "most_wait_ms"_a = std::numeric_limits<double>::infinity())
      .def("prepare", &PyEngine::prepare, "kernel"_a, "parts"_a, py::keep_alive<0, 1>())
      .def("prepare_groups", &PyEngine::prepare_groups, "kernel"_a, "groups"_a, "of_inputs"_a = false,
           py::keep_alive<0, 1>())
      .def(
          "timer",
          [](const PyEngine& engine, const Kernel& kernel, std::size_t workspace, std::size_t memory_cap) {
            return std::make_unique<PyTimer>(engine, kernel, workspace, memory_cap);
          },
          "kernel"_a, py::kw_only(), "workspace"_a, "memory_cap"_a, py::keep_alive<0, 1>())
      .def("compare", &PyEngine::compare, "divisions"_a, "x"_a, "w"_a, "y"_a, "workspace"_a.none(true),
           py::kw_only(), "rounds"_a, "operands"_a = Operands());

  py::class_<PyTimer>(module, "KernelTimer")
      .def("measure", &PyTimer::measure, "micro_batch"_a, "algorithm"_a, "workspace"_a,
           "hopeless_ms"_a = std::numeric_limits<double>::infinity());

  py::class_<PyKeptFilter>(module, "KeptFilter")
      .def_property_readonly("size", &PyKeptFilter::size)
      .def("matches", &PyKeptFilter::matches, "w"_a);

  py::class_<PyDivision>(module, "Division")
      .def_property_readonly("workspace", &PyDivision::workspace)
      .def_property_readonly("kept_filter_size", &PyDivision::kept_filter_size)
      .def("keep_filter", &PyDivision::keep_filter, "w"_a, py::keep_alive<0, 1>())
      .def("execute", &PyDivision::execute, "x"_a, "w"_a, "y"_a, "workspace"_a.none(true), py::kw_only(),
           "alpha"_a = 1.0, "beta"_a = 0.0, "operands"_a = Operands())
      .def("run", &PyDivision::run, "x"_a, "w"_a, "y"_a, "workspace"_a.none(true), "alpha"_a = 1.0,
           "beta"_a = 0.0, "stream"_a = 0, "kept"_a = nullptr, "bias"_a = 0);

  module.attr("STRIDED") = kStrided;
  module.def("most_slices", &most_slices, "kernel"_a);
  module.def("refusal_of_slices", &refusal_of_slices, "kernel"_a, "slices"_a);
  module.def("divided_channels", &divided_channels, "kernel"_a, "of_inputs"_a = false);
  module.def("channel_counts", &channel_counts, "kernel"_a, "of_inputs"_a = false);
  module.def("group_kernel", &group_kernel, "kernel"_a, "channels"_a, "of_inputs"_a = false);
  module.def("group_copies", &group_copies, "kernel"_a, "channels"_a, "samples"_a, "of_inputs"_a = false,
             "takes_strides"_a = false);
  module.def("tile_steps", &tile_steps, "kernel"_a);
  module.def("tile_kernel", &tile_kernel, "kernel"_a, "steps"_a);
  module.def("samples_to_time", &samples_to_time, "problem"_a, "memory_cap"_a, "bytes_beyond_caches"_a);
  module.def("host_library", [] { return path_next_to_extension("libmucudnn_host.so"); });
}

}  // namespace mucudnn::python
