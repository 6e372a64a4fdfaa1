#include "cudnn/engines/graph_engine.hpp"

#include <algorithm>
#include <iterator>
#include <list>
#include <mutex>
#include <set>

#include "core/tiles.hpp"
#include "cudnn/engines/convolution_graph.hpp"

namespace mucudnn {
namespace {

constexpr std::size_t kMostOthers = 4;  // execution plans of a kernel for unusual terms

bool is_allowed(const Problem& problem, const EngineNotes& notes) {
  if (notes.has(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS)) return false;
  if (notes.has(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION)) return false;
  if (problem.math == Math::strict &&
      (notes.has(CUDNN_NUMERICAL_NOTE_WINOGRAD) || notes.has(CUDNN_NUMERICAL_NOTE_FFT)))
    return false;
  if (!notes.has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE)) return true;
  switch (problem.data_type) {
    case DataType::f32:
      return problem.math == Math::tf32;
    case DataType::f64:  // fp64 tensor cores compute in fp64
      return true;
    default:
      return problem.math != Math::fma;
  }
}

// Returns the alignment of an address that is `bytes` away from a multiple of 16 bytes.
std::int64_t alignment_of(std::uintptr_t bytes) {
  std::int64_t alignment = 16;
  while (bytes % static_cast<std::uintptr_t>(alignment) != 0) alignment /= 2;
  return alignment;
}

std::int64_t alignment_of(const std::vector<void*>& addresses) {
  std::uintptr_t all = 0;
  for (void* const address : addresses) all |= reinterpret_cast<std::uintptr_t>(address);
  return alignment_of(all);
}

// Returns the terms of a kernel's slices. In a pass that adds slices, those after the first have beta 1.
std::vector<PlanTerms> usual_terms(Pass pass, std::int64_t alignment) {
  std::vector<PlanTerms> terms{{1, 0, alignment}};
  if (adds_slices(pass)) terms.push_back({1, 1, alignment});
  return terms;
}

class GraphKernel final : public PreparedKernel {
 public:
  GraphKernel(std::shared_ptr<const Context> context, const Kernel& kernel, const EngineName& name,
              const Pitch& pitch)
      : context_(std::move(context)),
        kernel_(kernel),
        pitch_(pitch),
        name_(name),
        alignment_(name.is_for_aligned ? 16 : usual_alignment(kernel.problem, pitch)) {
    const Problem& problem = kernel.problem;
    for (const PlanTerms& terms : usual_terms(kernel.pass, alignment_)) {
      plans_.emplace_back(terms, ConvolutionGraph(*context_, kernel, terms, pitch).plan(name));
      const EnginePlan& plan = plans_.back().second;
      workspace_ = std::max(workspace_, plan.workspace);
      if (!is_allowed(problem, plan.notes)) {
        throw EngineError(to_text(name) + " (" + plan.notes.text() + ") is not allowed by the arithmetic '" +
                          name_of(problem.math) + "' of " + name_of(problem.data_type));
      }
    }
    if (alignment_ > usual_alignment(problem, pitch) && pitch.has_rows())
      throw EngineError(to_text(name) + " is for aligned tensors, and the rows of a tile are not");
  }

  std::size_t workspace() const override { return workspace_; }
  std::vector<std::string> notes() const override { return {plans_.front().second.notes.text()}; }

  void execute(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace) const override {
    if (arguments.fusion || arguments.bias != nullptr)
      throw EngineError(to_text(name_) + " is not what the legacy API fuses");
    const Problem& problem = kernel_.problem;
    if (problem.is_fused() && (arguments.alpha != 1 || arguments.beta != 0))
      throw EngineError(to_text(name_) + " is planned for a fused convolution without alpha and beta");
    if (workspace.size < workspace_) {
      throw EngineError(to_text(name_) + " needs " + std::to_string(workspace_) +
                        " bytes of workspace, and there are " + std::to_string(workspace.size));
    }
    const Library& library = context_->library();
    // cuDNN's release notes say that some engines cannot run one execution plan in several threads at once.
    // Only the launch waits for the lock.
    const std::lock_guard<std::mutex> lock(mutex_);
    const Tensors& t = arguments.tensors;
    std::vector<std::int64_t> uids{ConvolutionGraph::kX, ConvolutionGraph::kW, ConvolutionGraph::kY};
    std::vector<void*> pointers{t.x, t.w, t.y};
    for (std::size_t i = 0; i < problem.epilogue.size(); ++i) {
      if (operand_of(problem.epilogue[i].kind) == Operand::none) continue;
      if (t.operands[i] == nullptr) throw EngineError(to_text(problem) + " needs its operands as well");
      uids.push_back(ConvolutionGraph::operand_uid(i));
      pointers.push_back(t.operands[i]);
    }
    const std::int64_t alignment = std::min(alignment_of(pointers), alignment_);
    const EnginePlan& plan = plan_for(handle, {arguments.alpha, arguments.beta, alignment});
    Backend pack(library, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, uids);
    pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, pointers);
    pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, static_cast<void*>(workspace.data));
    pack.finalize("a variant pack");
    library.check(library.cudnnBackendExecute(handle, plan.descriptor.get(), pack.get()),
                  to_text(name_).c_str());
  }

 private:
  // Unusual terms are rare, so the first call with them makes an execution plan, and the last few are kept.
  const EnginePlan& plan_for(cudnnHandle_t handle, const PlanTerms& terms) const {
    for (const auto& [its_terms, plan] : plans_) {
      if (its_terms == terms) return plan;
    }
    // The handle that the kernel was prepared on may be gone.
    const Context here(context_->shared_library(), handle);
    EnginePlan plan = ConvolutionGraph(here, kernel_, terms, pitch_).plan(name_);
    if (plan.workspace > workspace_) {
      throw EngineError(to_text(name_) + " needs more workspace than usual for these factors or addresses");
    }
    const auto usual = static_cast<std::ptrdiff_t>(usual_terms(kernel_.pass, alignment_).size());
    if (plans_.size() == kMostOthers + static_cast<std::size_t>(usual))
      plans_.erase(std::next(plans_.begin(), usual));
    return plans_.emplace_back(terms, std::move(plan)).second;
  }

  std::shared_ptr<const Context> context_;
  Kernel kernel_;
  Pitch pitch_;
  EngineName name_;
  std::int64_t alignment_;  // the alignment in bytes of the usual terms
  std::size_t workspace_ = 0;
  mutable std::mutex mutex_;
  mutable std::list<std::pair<PlanTerms, EnginePlan>> plans_;  // those of the usual terms come first
};

// Returns each name once. Notes the calls that fail in `asked`.
std::vector<EngineName> names_of(const ConvolutionGraph& graph, bool only_precompiled, Enumeration& asked) {
  std::set<std::int64_t> precompiled;
  for (std::int64_t number = 0; number < graph.engine_count(); ++number) {
    try {
      if (!graph.notes(number).has(CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION)) precompiled.insert(number);
    } catch (const CallFailed& failure) {
      // The engine is for another kind of device, or for other problems.
      asked.note(failure.code());
    }
  }
  std::vector<EngineName> all;
  for (const auto mode : {CUDNN_HEUR_MODE_INSTANT, CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_FALLBACK}) {
    try {
      graph.add_heuristics(mode, all);
    } catch (const CallFailed& failure) {
      // Some modes know only some problems. The engines counted above are listed in any case.
      asked.note(failure.code());
    }
  }
  for (const std::int64_t number : precompiled) all.push_back({number, {}});
  std::set<std::string> seen;
  all.erase(std::remove_if(all.begin(), all.end(),
                           [&](const EngineName& name) {
                             return (only_precompiled && precompiled.count(name.engine) == 0) ||
                                    !seen.insert(to_text(name)).second;
                           }),
            all.end());
  return all;
}

// Adds an engine, with the notes of the first graph, and the most workspace that it needs for one of them.
// The arithmetic of an engine may differ between the graphs, and must be allowed in each.
void add_candidate(const std::list<ConvolutionGraph>& graphs, const Problem& problem, const EngineName& name,
                   Enumeration& all) {
  Candidate& candidate = all.candidates.emplace_back();
  candidate.algorithm = to_text(name);
  candidate.status = "CUDNN_STATUS_SUCCESS";
  try {
    for (const ConvolutionGraph& graph : graphs) {
      const EnginePlan plan = graph.plan(name);
      candidate.workspace = std::max(candidate.workspace, plan.workspace);
      if (!is_allowed(problem, plan.notes)) candidate.status = kNotAllowed;
      if (&graph == &graphs.front()) candidate.notes = plan.notes.text();
    }
  } catch (const CallFailed& failure) {
    candidate = {candidate.algorithm, failure.status()};
    candidate.is_lasting = is_lasting(failure.code());
    all.note(failure.code());
  }
}

}  // namespace

std::int64_t usual_alignment(const Problem& p, const Pitch& pitch) {
  const auto bytes = [](std::int64_t elements, DataType type) {
    return static_cast<std::uintptr_t>(elements) * size_of(type);
  };
  std::uintptr_t all =
      bytes(p.mini_batch * p.x_sample(), p.data_type) | bytes(p.mini_batch * p.y_sample(), p.type_of_y());
  if (pitch.x_rows != 0) all |= x_rows(p, pitch.axis).size;  // a tile begins at any row
  if (pitch.y_rows != 0) all |= y_rows(p, pitch.axis).size;
  return alignment_of(all);
}

Enumeration enumerate_graph(const Context& context, const Kernel& kernel) {
  Enumeration all;
  if (kernel.is_fused_gradient()) return all;
  try {
    std::list<ConvolutionGraph> graphs;
    for (const PlanTerms& terms : usual_terms(kernel.pass, usual_alignment(kernel.problem)))
      graphs.emplace_back(context, kernel, terms);
    for (const EngineName& name : names_of(graphs.front(), kernel.problem.is_fused(), all))
      add_candidate(graphs, kernel.problem, name, all);
  } catch (const CallFailed& failure) {
    // If the library cannot describe the problem, it has no engine for it.
    all.note(failure.code());
  }
  return all;
}

std::unique_ptr<PreparedKernel> prepare_graph(std::shared_ptr<const Context> context, const Kernel& kernel,
                                              const std::string& algorithm, const Pitch& pitch) {
  const auto name = parse_engine_name(algorithm);
  if (!name) {
    throw EngineError("'" + algorithm + "' names no engine of the graph API" +
                      (context->device() ? ", and the legacy API plans only on a GPU" : ""));
  }
  if (kernel.is_fused_gradient()) {
    throw EngineError(std::string("no ") + name_of(kernel.pass) + " is fused: " + to_text(kernel.problem));
  }
  return std::make_unique<GraphKernel>(std::move(context), kernel, *name, pitch);
}

}  // namespace mucudnn
