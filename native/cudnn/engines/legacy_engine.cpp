#include "cudnn/engines/legacy_engine.hpp"

#include <algorithm>

#include "cudnn/descriptors.hpp"

namespace mucudnn {
namespace {

// The names of each pass's algorithms in the order of the enumerators, with a null pointer after the last.
#define MUCUDNN_NAME(enumerator, value, name) name,
constexpr const char* kNames[][kMostLegacyAlgorithms + 1] = {
    {MUCUDNN_FORWARD_ALGORITHMS(MUCUDNN_NAME)},
    {MUCUDNN_BACKWARD_DATA_ALGORITHMS(MUCUDNN_NAME)},
    {MUCUDNN_BACKWARD_FILTER_ALGORITHMS(MUCUDNN_NAME)},
};
#undef MUCUDNN_NAME

unsigned algorithm_named(Pass pass, const std::string& name) {
  for (unsigned i = 0; const char* const known = legacy_algorithm(pass, i); ++i) {
    if (name == known) return i;
  }
  throw EngineError("the legacy API has no algorithm '" + name + "' for this pass");
}

bool is_allowed(const Problem& problem, const std::string& algorithm) {
  return problem.math != Math::strict || !is_transform(algorithm, "");
}

// A factor in the type that cuDNN reads: double for double data, float for all others.
class Scale {
 public:
  Scale(double value, bool is_double)
      : double_(value), float_(static_cast<float>(value)), is_double_(is_double) {}
  const void* data() const { return is_double_ ? static_cast<const void*>(&double_) : &float_; }

 private:
  double double_;
  float float_;
  bool is_double_;
};

// The answer of the heuristics; empty if they refuse to answer.
struct Heuristics {
  Heuristics(const Context& context, Pass pass, const LegacyDescriptors& descriptors)
      : status(get_notes(context.library(), context.handle(), pass, descriptors, all)) {}

  // Returns the notes on determinism and tensor cores.
  std::string notes_on(unsigned algorithm) const {
    const auto its = std::find_if(all.begin(), all.end(),
                                  [&](const LegacyNotes& notes) { return notes.algorithm == algorithm; });
    if (its == all.end()) return "";
    const bool is_tensor_op = its->math != CUDNN_DEFAULT_MATH && its->math != CUDNN_FMA_MATH;
    if (!its->is_deterministic) return is_tensor_op ? "tensor_op" : "";
    return is_tensor_op ? "deterministic tensor_op" : "deterministic";
  }

  std::vector<LegacyNotes> all;
  cudnnStatus_t status;
};

class LegacyKernel final : public PreparedKernel {
 public:
  LegacyKernel(std::shared_ptr<const Context> context, const Kernel& kernel, const std::string& algorithm,
               const Pitch& pitch)
      : context_(std::move(context)),
        descriptors_(context_->library(), kernel.problem, pitch),
        pass_(kernel.pass),
        algorithm_(algorithm_named(pass_, algorithm)),
        is_double_(kernel.problem.data_type == DataType::f64) {
    context_->library().check(get_workspace_size(context_->library(), context_->handle(), pass_,
                                                 descriptors_.all(), algorithm_, workspace_),
                              ("preparing " + algorithm).c_str());
    if (context_->library().get_kept_filter_size == nullptr || pass_ == Pass::backward_filter) return;
    const mucudnnHostConvolution convolution = host_convolution();
    context_->library().check(context_->library().get_kept_filter_size(&convolution, &kept_filter_size_),
                              ("preparing " + algorithm).c_str());
  }

  std::size_t workspace() const override { return workspace_; }
  std::size_t kept_filter_size() const override { return kept_filter_size_; }
  void keep_filter(const char* w, char* kept) const override {
    if (kept_filter_size_ == 0) return;
    const mucudnnHostConvolution convolution = host_convolution();
    context_->library().check(context_->library().keep_filter(&convolution, w, kept), "keeping a filter");
  }
  std::vector<std::string> notes() const override {
    return {Heuristics(*context_, pass_, descriptors_.all()).notes_on(algorithm_)};
  }

  void execute(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace) const override {
    const Scale alpha(arguments.alpha, is_double_);
    const Scale beta(arguments.fusion ? arguments.fusion->z_scale : arguments.beta, is_double_);
    const Tensors& tensors = arguments.tensors;
    const LegacyCall call{handle,       pass_,       descriptors_.all(), algorithm_,
                          alpha.data(), beta.data(), tensors.x,          tensors.w,
                          tensors.y,    workspace,   arguments.fusion,   descriptors_.y};
    const Library& library = context_->library();
    if (arguments.kept_filter != nullptr || arguments.bias != nullptr) {
      if (library.convolve == nullptr) throw EngineError("only the host engine adds a bias");
      const mucudnnHostConvolution convolution = host_convolution();
      library.check(library.convolve(&convolution, alpha.data(), tensors.x, tensors.w, arguments.kept_filter,
                                     tensors.y, workspace.data, workspace.size, beta.data(), arguments.bias),
                    legacy_algorithm(pass_, algorithm_));
      return;
    }
    library.check(mucudnn::execute(library, call), legacy_algorithm(pass_, algorithm_));
  }

 private:
  mucudnnHostConvolution host_convolution() const {
    const LegacyDescriptors& all = descriptors_.all();
    return {static_cast<int>(pass_), all.x, all.w, all.convolution, all.y, algorithm_};
  }

  std::shared_ptr<const Context> context_;
  Descriptors descriptors_;
  Pass pass_;
  unsigned algorithm_;
  bool is_double_;
  std::size_t workspace_ = 0, kept_filter_size_ = 0;
};

}  // namespace

const char* legacy_algorithm(Pass pass, unsigned enumerator) {
  return enumerator < kMostLegacyAlgorithms ? kNames[static_cast<int>(pass)][enumerator] : nullptr;
}

Enumeration enumerate_legacy(const Context& context, const Kernel& kernel) {
  if (kernel.problem.is_fused()) return {};
  const Library& library = context.library();
  Enumeration all;
  const auto set_status = [&](Candidate& candidate, cudnnStatus_t status) {
    candidate.status = library.cudnnGetErrorString(status);
    candidate.is_lasting = is_lasting(status);
    all.note(status);
  };
  for (unsigned i = 0; const char* const name = legacy_algorithm(kernel.pass, i); ++i)
    all.candidates.emplace_back().algorithm = name;
  try {
    const Descriptors descriptors(library, kernel.problem);
    const Heuristics heuristics(context, kernel.pass, descriptors.all());
    all.note(heuristics.status);
    for (unsigned algorithm = 0; algorithm < all.candidates.size(); ++algorithm) {
      Candidate& candidate = all.candidates[algorithm];
      set_status(candidate, get_workspace_size(library, context.handle(), kernel.pass, descriptors.all(),
                                               algorithm, candidate.workspace));
      candidate.notes = heuristics.notes_on(algorithm);
      if (!is_allowed(kernel.problem, candidate.algorithm)) candidate.status = kNotAllowed;
    }
  } catch (const CallFailed& failure) {
    // The library cannot describe the problem, so no algorithm can run it.
    for (Candidate& candidate : all.candidates) set_status(candidate, failure.code());
  }
  return all;
}

std::unique_ptr<PreparedKernel> prepare_legacy(std::shared_ptr<const Context> context, const Kernel& kernel,
                                               const std::string& algorithm, const Pitch& pitch) {
  if (kernel.problem.is_fused()) {
    throw EngineError("the legacy API does not fuse '" + to_text(kernel.problem.epilogue) +
                      "': " + algorithm);
  }
  if (!is_allowed(kernel.problem, algorithm))
    throw EngineError(algorithm + " is not allowed by strict arithmetic");
  return std::make_unique<LegacyKernel>(std::move(context), kernel, algorithm, pitch);
}

}  // namespace mucudnn
