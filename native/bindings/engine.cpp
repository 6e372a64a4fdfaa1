#include "cudnn/engine.hpp"

#include <dlfcn.h>

#include <pybind11/stl.h>

#include "bindings/bindings.hpp"
#include "cudnn/division.hpp"
#include "cudnn/legacy_engine.hpp"
#include "cudnn/library.hpp"
#include "cudnn/measure.hpp"
#include "cudnn/tiling.hpp"

namespace py = pybind11;

namespace mucudnn::python {
namespace {

using Parts = std::vector<std::pair<std::int64_t, std::string>>;

std::vector<Slice> to_slices(const Parts& parts) {
  std::vector<Slice> slices;
  for (const auto& [micro_batch, algorithm] : parts) slices.push_back({micro_batch, algorithm});
  return slices;
}

std::vector<Tile> to_tiles(const Parts& parts) {
  std::vector<Tile> tiles;
  for (const auto& [steps, algorithm] : parts) tiles.push_back({steps, algorithm});
  return tiles;
}

Region to_region(const Memory& x, const Memory& w, const Memory& y) {
  return {{x.data(), w.data(), y.data()}, x.size(), w.size(), y.size()};
}

Scratch to_scratch(const Memory* workspace) {
  return workspace == nullptr ? Scratch{} : Scratch{workspace->data(), workspace->size()};
}

// A library, its device, and the thread count it is to run with.
class PyEngine {
 public:
  PyEngine(const std::string& path, int threads)
      : library_(std::make_shared<Library>(path)), threads_(threads) {
    if (threads < 1)
      throw std::invalid_argument("threads is " + std::to_string(threads) + ": it must be at least 1");
    if (!library_->is_host()) {
      throw EngineError("'" + path +
                        "' computes on NVIDIA devices, this version measures on the host engine only");
    }
    device_ = make_host_device();
    engine_ = make_legacy_engine(library_);
  }

  std::string kind() const { return "host"; }
  std::string device() const { return library_->describe_host(); }
  std::string library() const { return library_->name(); }
  int threads() const { return threads_; }

  std::shared_ptr<Memory> allocate(std::size_t size) const { return std::make_shared<Memory>(device_, size); }

  std::vector<Candidate> enumerate(const Problem& problem, const std::string& pass) const {
    return engine_->enumerate(problem, pass_named(pass));
  }

  static std::size_t accumulator(const Problem& problem, const std::string& pass, std::size_t parts) {
    return accumulator_size(problem, pass_named(pass), parts);
  }

  std::vector<double> measure(const Problem& problem, const std::string& pass, const std::string& algorithm,
                              const Memory& x, const Memory& w, const Memory& y, const Memory* workspace,
                              int repeats, double budget_ms) const {
    const Pass which = pass_named(pass);
    const py::gil_scoped_release release;
    use_threads();
    return mucudnn::measure(*engine_, *device_, problem, which, algorithm, to_region(x, w, y),
                            to_scratch(workspace), repeats, budget_ms);
  }

  void execute(const Problem& problem, const std::string& pass, const Parts& parts, const Memory& x,
               const Memory& w, const Memory& y, const Memory* workspace, double alpha, double beta) const {
    const Pass which = pass_named(pass);
    const Region region = to_region(x, w, y);
    check_sizes(problem, region);
    const py::gil_scoped_release release;
    use_threads();
    Division(*engine_, *device_, problem, which, to_slices(parts))
        .run(engine_->handle(), {region.tensors, alpha, beta}, to_scratch(workspace));
  }

  void execute_tiles(const Problem& problem, const std::string& pass, const Parts& parts, const Memory& x,
                     const Memory& w, const Memory& y, const Memory* workspace, double alpha,
                     double beta) const {
    const Pass which = pass_named(pass);
    const Region region = to_region(x, w, y);
    check_sizes(problem, region);
    const py::gil_scoped_release release;
    use_threads();
    Tiling(*engine_, *device_, problem, which, to_tiles(parts))
        .run(engine_->handle(), {region.tensors, alpha, beta}, to_scratch(workspace));
  }

  std::size_t tile_workspace(const Problem& problem, const std::string& pass, const Parts& parts) const {
    return Tiling(*engine_, *device_, problem, pass_named(pass), to_tiles(parts)).workspace();
  }

  std::vector<std::vector<double>> compare(const Problem& problem, const std::string& pass,
                                           const std::vector<Parts>& configurations, const Memory& x,
                                           const Memory& w, const Memory& y, const Memory* workspace,
                                           int rounds) const {
    const Pass which = pass_named(pass);
    const Region region = to_region(x, w, y);
    check_sizes(problem, region);
    const py::gil_scoped_release release;
    use_threads();
    std::vector<std::unique_ptr<Division>> divisions;
    std::vector<const Division*> pointers;
    for (const Parts& parts : configurations) {
      divisions.push_back(std::make_unique<Division>(*engine_, *device_, problem, which, to_slices(parts)));
      pointers.push_back(divisions.back().get());
    }
    return mucudnn::compare(*engine_, *device_, pointers, region.tensors, to_scratch(workspace), rounds);
  }

 private:
  // The count belongs to the process; each engine sets its own before it runs.
  void use_threads() const { library_->set_host_threads(threads_); }

  std::shared_ptr<Library> library_;
  int threads_;
  std::shared_ptr<Device> device_;
  std::unique_ptr<Engine> engine_;
};

std::string host_library() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&host_library), &info) == 0 || info.dli_fname == nullptr) {
    throw EngineError("cannot find the folder of the extension");
  }
  const std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/') + 1) + "libmucudnn_host.so";
}

}  // namespace

void bind_engine(py::module_& module) {
  py::register_exception<EngineError>(module, "EngineError", PyExc_RuntimeError);
  py::class_<Candidate>(module, "Candidate")
      .def_readonly("algorithm", &Candidate::algorithm)
      .def_readonly("status", &Candidate::status)
      .def_readonly("workspace", &Candidate::workspace)
      .def_readonly("notes", &Candidate::notes);

  py::class_<PyEngine>(module, "Engine")
      .def(py::init<const std::string&, int>(), py::arg("library"), py::kw_only(), py::arg("threads") = 1)
      .def_property_readonly("kind", &PyEngine::kind)
      .def_property_readonly("device", &PyEngine::device)
      .def_property_readonly("library", &PyEngine::library)
      .def_property_readonly("threads", &PyEngine::threads)
      .def("allocate", &PyEngine::allocate, py::arg("size"))
      .def("enumerate", &PyEngine::enumerate, py::arg("problem"), py::arg("pass_"))
      .def_static("accumulator_size", &PyEngine::accumulator, py::arg("problem"), py::arg("pass_"),
                  py::arg("parts"))
      .def("measure", &PyEngine::measure, py::arg("problem"), py::arg("pass_"), py::arg("algorithm"),
           py::arg("x"), py::arg("w"), py::arg("y"), py::arg("workspace").none(true), py::kw_only(),
           py::arg("repeats"), py::arg("budget_ms"))
      .def("execute", &PyEngine::execute, py::arg("problem"), py::arg("pass_"), py::arg("parts"),
           py::arg("x"), py::arg("w"), py::arg("y"), py::arg("workspace").none(true), py::kw_only(),
           py::arg("alpha") = 1.0, py::arg("beta") = 0.0)
      .def("execute_tiles", &PyEngine::execute_tiles, py::arg("problem"), py::arg("pass_"), py::arg("parts"),
           py::arg("x"), py::arg("w"), py::arg("y"), py::arg("workspace").none(true), py::kw_only(),
           py::arg("alpha") = 1.0, py::arg("beta") = 0.0)
      .def("tile_workspace", &PyEngine::tile_workspace, py::arg("problem"), py::arg("pass_"),
           py::arg("parts"))
      .def("compare", &PyEngine::compare, py::arg("problem"), py::arg("pass_"), py::arg("configurations"),
           py::arg("x"), py::arg("w"), py::arg("y"), py::arg("workspace").none(true), py::kw_only(),
           py::arg("rounds"));

  module.def(
      "tile_steps",
      [](const Problem& problem, const std::string& pass) { return tile_steps(problem, pass_named(pass)); },
      py::arg("problem"), py::arg("pass_"));
  module.def(
      "tile_problem",
      [](const Problem& problem, const std::string& pass, std::int64_t steps) {
        return tile_problem(problem, pass_named(pass), steps);
      },
      py::arg("problem"), py::arg("pass_"), py::arg("steps"));
  module.def("host_library", &host_library);
}

}  // namespace mucudnn::python
