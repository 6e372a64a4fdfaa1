#include "cudnn/graph_engine.hpp"

#include <algorithm>
#include <mutex>
#include <set>

#include "cudnn/convolution_graph.hpp"

namespace mucudnn {
namespace {

bool is_allowed(const Problem& problem, const EngineNotes& notes) {
  if (notes.has(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS)) return false;
  if (notes.has(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION)) return false;
  if (!notes.has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE)) return true;
  switch (problem.data_type) {
    case DataType::f32:
      return problem.math == Math::tf32;
    case DataType::f64:  // whose tensor cores compute in fp64
      return true;
    default:
      return problem.math != Math::strict;
  }
}

// The factors of a kernel's plans: with no output to add to, and, for the slices of backward_filter after the
// first, with one.
constexpr Factors kPlain{1, 0}, kAdding{1, 1};

// An algorithm as planned for one problem.
struct Planned {
  std::shared_ptr<const EnginePlan> plain;
  std::shared_ptr<const EnginePlan> adding;  // of backward_filter only
  std::size_t workspace = 0;
};

// The graphs that the plans of a problem are made from.
struct Graphs {
  Graphs(const Context& context, const Problem& problem, Pass pass) : plain(context, problem, pass, kPlain) {
    if (pass == Pass::backward_filter) adding.emplace(context, problem, pass, kAdding);
  }

  Planned plan(const EngineName& name) const {
    Planned planned;
    planned.plain = std::make_shared<EnginePlan>(plain.plan(name));
    planned.workspace = planned.plain->workspace;
    if (adding) {
      planned.adding = std::make_shared<EnginePlan>(adding->plan(name));
      planned.workspace = std::max(planned.workspace, planned.adding->workspace);
    }
    return planned;
  }

  ConvolutionGraph plain;
  std::optional<ConvolutionGraph> adding;
};

class GraphKernel final : public PreparedKernel {
 public:
  GraphKernel(std::shared_ptr<const Context> context, const Problem& problem, Pass pass,
              const EngineName& name)
      : context_(std::move(context)),
        problem_(problem),
        pass_(pass),
        name_(name),
        planned_(Graphs(*context_, problem, pass).plan(name)) {
    if (!is_allowed(problem, planned_.plain->notes)) {
      throw EngineError(to_text(name) + " (" + planned_.plain->notes.text() +
                        ") is not allowed by the arithmetic '" + name_of(problem.math) + "' of " +
                        name_of(problem.data_type));
    }
  }

  std::size_t workspace() const override { return planned_.workspace; }

  void execute(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace) const override {
    if (arguments.fusion) throw EngineError(to_text(name_) + " is planned for a convolution alone");
    if (workspace.size < planned_.workspace) {
      throw EngineError(to_text(name_) + " needs " + std::to_string(planned_.workspace) +
                        " bytes of workspace, and there are " + std::to_string(workspace.size));
    }
    const Library& library = context_->library();
    // cuDNN's release notes exempt some engines from running one plan in several threads at once. All that
    // waits is the launch.
    const std::lock_guard<std::mutex> lock(mutex_);
    const EnginePlan& plan = plan_for(handle, {arguments.alpha, arguments.beta});
    Backend pack(library, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
             std::vector<std::int64_t>{ConvolutionGraph::kX, ConvolutionGraph::kW, ConvolutionGraph::kY});
    const Tensors& t = arguments.tensors;
    pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, std::vector<void*>{t.x, t.w, t.y});
    pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, static_cast<void*>(workspace.data));
    pack.finalize("a variant pack");
    library.check(library.cudnnBackendExecute(handle, plan.descriptor.get(), pack.get()),
                  to_text(name_).c_str());
  }

 private:
  // Other factors than the two are rare: the first call with them plans, and the last ones are kept.
  const EnginePlan& plan_for(cudnnHandle_t handle, const Factors& factors) const {
    const auto same = [&](const Factors& other) {
      return factors.alpha == other.alpha && factors.beta == other.beta;
    };
    if (same(kPlain)) return *planned_.plain;
    if (planned_.adding && same(kAdding)) return *planned_.adding;
    if (!other_ || !same(other_factors_)) {
      const Context here(context_->shared_library(), handle);  // the one it was prepared on may be gone
      auto plan = std::make_shared<EnginePlan>(ConvolutionGraph(here, problem_, pass_, factors).plan(name_));
      if (plan->workspace > planned_.workspace) {
        throw EngineError(to_text(name_) + " needs more workspace where it scales or adds");
      }
      other_ = std::move(plan);
      other_factors_ = factors;
    }
    return *other_;
  }

  std::shared_ptr<const Context> context_;
  Problem problem_;
  Pass pass_;
  EngineName name_;
  Planned planned_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const EnginePlan> other_;
  mutable Factors other_factors_;
};

class GraphEngine final : public Engine {
 public:
  explicit GraphEngine(std::shared_ptr<const Context> context) : context_(std::move(context)) {}

  cudnnHandle_t handle() const override { return context_->handle(); }

  std::vector<Candidate> enumerate(const Problem& problem, Pass pass) override {
    std::vector<Candidate> candidates;
    try {
      const Graphs graphs(*context_, problem, pass);
      for (const EngineName& name : names(graphs.plain)) {
        candidates.push_back(candidate(graphs, problem, name));
      }
    } catch (const CallFailed&) {
      // The library cannot even describe the problem: it has no engine for it.
    }
    return candidates;
  }

  std::unique_ptr<PreparedKernel> prepare(const Problem& problem, Pass pass,
                                          const std::string& algorithm) override {
    const auto name = parse_engine_name(algorithm);
    if (!name) {
      throw EngineError("'" + algorithm + "' names no engine of the graph API" +
                        (context_->device() ? ", and the legacy API plans on a GPU alone" : ""));
    }
    return std::make_unique<GraphKernel>(context_, problem, pass, *name);
  }

 private:
  // Each once.
  static std::vector<EngineName> names(const ConvolutionGraph& graph) {
    std::vector<EngineName> all;
    for (const auto mode : {CUDNN_HEUR_MODE_INSTANT, CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_FALLBACK}) {
      for (EngineName& name : graph.heuristics(mode)) all.push_back(std::move(name));
    }
    for (std::int64_t number = 0; number < graph.engine_count(); ++number) {
      try {
        graph.engine(number);
        all.push_back({number, {}});
      } catch (const CallFailed&) {
        // Of another kind of device, or of other problems.
      }
    }
    std::set<std::string> seen;
    all.erase(std::remove_if(all.begin(), all.end(),
                             [&](const EngineName& name) { return !seen.insert(to_text(name)).second; }),
              all.end());
    return all;
  }

  static Candidate candidate(const Graphs& graphs, const Problem& problem, const EngineName& name) {
    Candidate candidate{to_text(name), "", 0, ""};
    try {
      const Planned planned = graphs.plan(name);
      candidate.status = is_allowed(problem, planned.plain->notes) ? "CUDNN_STATUS_SUCCESS" : kNotAllowed;
      candidate.workspace = planned.workspace;
      candidate.notes = planned.plain->notes.text();
    } catch (const CallFailed& failure) {
      candidate.status = failure.status();
    }
    return candidate;
  }

  std::shared_ptr<const Context> context_;
};

}  // namespace

std::unique_ptr<Engine> make_graph_engine(std::shared_ptr<const Context> context) {
  return std::make_unique<GraphEngine>(std::move(context));
}

}  // namespace mucudnn
