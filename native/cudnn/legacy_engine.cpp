#include "cudnn/legacy_engine.hpp"

#include <iterator>
#include <optional>

#include "cudnn/descriptors.hpp"

namespace mucudnn {
namespace {

// The traits of the three passes: the names of the algorithms, and the type of the heuristics' answers.
#define MUCUDNN_NAME(enumerator, value, name) name,
struct ForwardPass {
  using Performance = cudnnConvolutionFwdAlgoPerf_t;
  static constexpr const char* kNames[] = {MUCUDNN_FORWARD_ALGORITHMS(MUCUDNN_NAME)};
};
struct BackwardDataPass {
  using Performance = cudnnConvolutionBwdDataAlgoPerf_t;
  static constexpr const char* kNames[] = {MUCUDNN_BACKWARD_DATA_ALGORITHMS(MUCUDNN_NAME)};
};
struct BackwardFilterPass {
  using Performance = cudnnConvolutionBwdFilterAlgoPerf_t;
  static constexpr const char* kNames[] = {MUCUDNN_BACKWARD_FILTER_ALGORITHMS(MUCUDNN_NAME)};
};
#undef MUCUDNN_NAME

// Calls `use` with the traits of the pass.
template <typename Use>
auto with_traits(Pass pass, Use use) {
  switch (pass) {
    case Pass::forward:
      return use(ForwardPass{});
    case Pass::backward_data:
      return use(BackwardDataPass{});
    case Pass::backward_filter:
      break;
  }
  return use(BackwardFilterPass{});
}

unsigned algorithm_named(Pass pass, const std::string& name) {
  for (unsigned i = 0; const char* const known = legacy_algorithm(pass, i); ++i) {
    if (name == known) return i;
  }
  throw EngineError("the legacy API has no algorithm '" + name + "' for this pass");
}

cudnnStatus_t describe(const Context& c, const LegacyDescriptors& d, int most, int* count,
                       cudnnConvolutionFwdAlgoPerf_t* results) {
  return c.library().cudnnGetConvolutionForwardAlgorithm_v7(c.handle(), d.x, d.w, d.convolution, d.y, most,
                                                            count, results);
}
cudnnStatus_t describe(const Context& c, const LegacyDescriptors& d, int most, int* count,
                       cudnnConvolutionBwdDataAlgoPerf_t* results) {
  return c.library().cudnnGetConvolutionBackwardDataAlgorithm_v7(c.handle(), d.w, d.y, d.convolution, d.x,
                                                                 most, count, results);
}
cudnnStatus_t describe(const Context& c, const LegacyDescriptors& d, int most, int* count,
                       cudnnConvolutionBwdFilterAlgoPerf_t* results) {
  return c.library().cudnnGetConvolutionBackwardFilterAlgorithm_v7(c.handle(), d.x, d.y, d.convolution, d.w,
                                                                   most, count, results);
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
template <typename Traits>
struct Described {
  Described(const Context& context, const LegacyDescriptors& descriptors)
      : results(2 * std::size(Traits::kNames)) {
    int count = 0;
    status = describe(context, descriptors, static_cast<int>(results.size()), &count, results.data());
    results.resize(status == CUDNN_STATUS_SUCCESS ? static_cast<std::size_t>(count) : 0);
  }

  // Returns the notes on determinism and tensor cores. The answer may leave out algorithms that cannot run.
  std::string notes_on(unsigned algorithm) const {
    for (const auto& result : results) {
      if (static_cast<unsigned>(result.algo) != algorithm) continue;
      std::string notes = result.determinism == CUDNN_DETERMINISTIC ? "deterministic" : "";
      if (result.mathType != CUDNN_DEFAULT_MATH && result.mathType != CUDNN_FMA_MATH) {
        notes += notes.empty() ? "tensor_op" : " tensor_op";
      }
      return notes;
    }
    return "";
  }

  std::vector<typename Traits::Performance> results;
  cudnnStatus_t status;
};

class LegacyKernel final : public PreparedKernel {
 public:
  LegacyKernel(std::shared_ptr<const Context> context, const Kernel& kernel, const std::string& algorithm,
               const ChannelPitch& pitch)
      : context_(std::move(context)),
        descriptors_(context_->library(), kernel.problem, pitch),
        pass_(kernel.pass),
        algorithm_(algorithm_named(pass_, algorithm)),
        is_double_(kernel.problem.data_type == DataType::f64) {
    context_->library().check(get_workspace_size(context_->library(), context_->handle(), pass_,
                                                 descriptors_.all(), algorithm_, workspace_),
                              ("preparing " + algorithm).c_str());
  }

  std::size_t workspace() const override { return workspace_; }
  std::string notes() const override {
    return with_traits(pass_, [&](auto traits) {
      return Described<decltype(traits)>(*context_, descriptors_.all()).notes_on(algorithm_);
    });
  }

  void execute(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace) const override {
    const Scale alpha(arguments.alpha, is_double_);
    const Scale beta(arguments.fusion ? arguments.fusion->z_scale : arguments.beta, is_double_);
    const LegacyCall call{handle,           pass_,         descriptors_.all(), algorithm_,
                          alpha.data(),     beta.data(),   arguments.tensors,  workspace,
                          arguments.fusion, descriptors_.y};
    const Library& library = context_->library();
    library.check(mucudnn::execute(library, call), legacy_algorithm(pass_, algorithm_));
  }

 private:
  std::shared_ptr<const Context> context_;
  Descriptors descriptors_;
  Pass pass_;
  unsigned algorithm_;
  bool is_double_;
  std::size_t workspace_ = 0;
};

// Asks the library about tensors that are some channels of larger ones. Notes the statuses in `asked`.
class StrideProbe {
 public:
  StrideProbe(const Context& context, const Kernel& kernel, Enumeration& asked)
      : context_(context), pass_(kernel.pass), asked_(asked) {
    try {
      descriptors_.emplace(context.library(), kernel.problem, pitch_of_halves(kernel.problem));
    } catch (const CallFailed& failure) {
      // The library refuses such tensors, so no algorithm takes them.
      asked.note(failure.code());
    }
  }

  // Returns whether an algorithm takes them in so much workspace.
  bool takes(unsigned algorithm, std::size_t workspace) const {
    if (!descriptors_) return false;
    std::size_t needed = 0;
    const cudnnStatus_t status = get_workspace_size(context_.library(), context_.handle(), pass_,
                                                    descriptors_->all(), algorithm, needed);
    asked_.note(status);
    return status == CUDNN_STATUS_SUCCESS && needed <= workspace;
  }

 private:
  const Context& context_;
  Pass pass_;
  Enumeration& asked_;
  std::optional<Descriptors> descriptors_;
};

template <typename Traits>
Enumeration enumeration(const Context& context, const Kernel& kernel) {
  const Library& library = context.library();
  Enumeration all;
  const auto set_status = [&](Candidate& candidate, cudnnStatus_t status) {
    candidate.status = library.cudnnGetErrorString(status);
    candidate.is_lasting = is_lasting(status);
    all.note(status);
  };
  for (const char* name : Traits::kNames) all.candidates.emplace_back().algorithm = name;
  try {
    const Descriptors descriptors(library, kernel.problem);
    const Described<Traits> described(context, descriptors.all());
    const StrideProbe probe(context, kernel, all);
    all.note(described.status);
    for (unsigned algorithm = 0; algorithm < all.candidates.size(); ++algorithm) {
      Candidate& candidate = all.candidates[algorithm];
      const cudnnStatus_t status = get_workspace_size(library, context.handle(), kernel.pass,
                                                      descriptors.all(), algorithm, candidate.workspace);
      set_status(candidate, status);
      candidate.notes = described.notes_on(algorithm);
      if (status == CUDNN_STATUS_SUCCESS && probe.takes(algorithm, candidate.workspace))
        candidate.add_note(kStrided);
    }
    // The library cannot describe the problem, so no algorithm can run it.
  } catch (const CallFailed& failure) {
    for (Candidate& candidate : all.candidates) set_status(candidate, failure.code());
  }
  return all;
}

class LegacyEngine final : public Engine {
 public:
  explicit LegacyEngine(std::shared_ptr<const Context> context) : context_(std::move(context)) {}

  cudnnHandle_t handle() const override { return context_->handle(); }

  Enumeration enumerate(const Kernel& kernel) override {
    if (kernel.problem.is_fused()) return {};
    return with_traits(kernel.pass,
                       [&](auto traits) { return enumeration<decltype(traits)>(*context_, kernel); });
  }

  std::unique_ptr<PreparedKernel> prepare(const Kernel& kernel, const std::string& algorithm,
                                          const ChannelPitch& pitch) override {
    if (kernel.problem.is_fused()) {
      throw EngineError("the legacy API does not fuse '" + to_text(kernel.problem.epilogue) +
                        "': " + algorithm);
    }
    return std::make_unique<LegacyKernel>(context_, kernel, algorithm, pitch);
  }

 private:
  std::shared_ptr<const Context> context_;
};

}  // namespace

const char* legacy_algorithm(Pass pass, unsigned enumerator) {
  return with_traits(pass, [&](auto traits) {
    const auto& names = decltype(traits)::kNames;
    return enumerator >= std::size(names) ? nullptr : names[enumerator];
  });
}

std::unique_ptr<Engine> make_legacy_engine(std::shared_ptr<const Context> context) {
  return std::make_unique<LegacyEngine>(std::move(context));
}

}  // namespace mucudnn
