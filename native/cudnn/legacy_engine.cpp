#include "cudnn/legacy_engine.hpp"

#include <algorithm>
#include <iterator>

#include "cudnn/descriptors.hpp"

namespace mucudnn {
namespace {

// The differences between the three passes: the names of the algorithms and, below, the functions.
#define MUCUDNN_NAME(enumerator, value, name) name,
struct ForwardPass {
  using Algorithm = cudnnConvolutionFwdAlgo_t;
  using Performance = cudnnConvolutionFwdAlgoPerf_t;
  static constexpr const char* kNames[] = {MUCUDNN_FORWARD_ALGORITHMS(MUCUDNN_NAME)};
};
struct BackwardDataPass {
  using Algorithm = cudnnConvolutionBwdDataAlgo_t;
  using Performance = cudnnConvolutionBwdDataAlgoPerf_t;
  static constexpr const char* kNames[] = {MUCUDNN_BACKWARD_DATA_ALGORITHMS(MUCUDNN_NAME)};
};
struct BackwardFilterPass {
  using Algorithm = cudnnConvolutionBwdFilterAlgo_t;
  using Performance = cudnnConvolutionBwdFilterAlgoPerf_t;
  static constexpr const char* kNames[] = {MUCUDNN_BACKWARD_FILTER_ALGORITHMS(MUCUDNN_NAME)};
};
#undef MUCUDNN_NAME

template <typename Kind>
int algorithm_named(const std::string& name) {
  const auto found = std::find(std::begin(Kind::kNames), std::end(Kind::kNames), name);
  if (found == std::end(Kind::kNames))
    throw EngineError("the legacy API has no algorithm '" + name + "' for this pass");
  return static_cast<int>(found - std::begin(Kind::kNames));
}

cudnnStatus_t workspace_size(const Context& c, const Descriptors& d, cudnnConvolutionFwdAlgo_t algorithm,
                             std::size_t* size) {
  return c.library().cudnnGetConvolutionForwardWorkspaceSize(c.handle(), d.x, d.w, d.convolution, d.y,
                                                             algorithm, size);
}
cudnnStatus_t workspace_size(const Context& c, const Descriptors& d, cudnnConvolutionBwdDataAlgo_t algorithm,
                             std::size_t* size) {
  return c.library().cudnnGetConvolutionBackwardDataWorkspaceSize(c.handle(), d.w, d.y, d.convolution, d.x,
                                                                  algorithm, size);
}
cudnnStatus_t workspace_size(const Context& c, const Descriptors& d,
                             cudnnConvolutionBwdFilterAlgo_t algorithm, std::size_t* size) {
  return c.library().cudnnGetConvolutionBackwardFilterWorkspaceSize(c.handle(), d.x, d.y, d.convolution, d.w,
                                                                    algorithm, size);
}

cudnnStatus_t describe(const Context& c, const Descriptors& d, int most, int* count,
                       cudnnConvolutionFwdAlgoPerf_t* results) {
  return c.library().cudnnGetConvolutionForwardAlgorithm_v7(c.handle(), d.x, d.w, d.convolution, d.y, most,
                                                            count, results);
}
cudnnStatus_t describe(const Context& c, const Descriptors& d, int most, int* count,
                       cudnnConvolutionBwdDataAlgoPerf_t* results) {
  return c.library().cudnnGetConvolutionBackwardDataAlgorithm_v7(c.handle(), d.w, d.y, d.convolution, d.x,
                                                                 most, count, results);
}
cudnnStatus_t describe(const Context& c, const Descriptors& d, int most, int* count,
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

struct Scales {
  Scale alpha;
  Scale beta;
  Scale z;
};

cudnnStatus_t run(const Library& c, cudnnHandle_t handle, const Descriptors& d,
                  cudnnConvolutionFwdAlgo_t algorithm, const Arguments& a, const Scales& scales,
                  const Scratch& s) {
  const Tensors& t = a.tensors;
  if (a.fusion) {
    const Fusion& f = *a.fusion;
    return c.cudnnConvolutionBiasActivationForward(
        handle, scales.alpha.data(), d.x, t.x, d.w, t.w, d.convolution, algorithm, s.data, s.size,
        scales.z.data(), d.y, f.z, f.bias_descriptor, f.bias, f.activation, d.y, t.y);
  }
  return c.cudnnConvolutionForward(handle, scales.alpha.data(), d.x, t.x, d.w, t.w, d.convolution, algorithm,
                                   s.data, s.size, scales.beta.data(), d.y, t.y);
}
cudnnStatus_t run(const Library& c, cudnnHandle_t handle, const Descriptors& d,
                  cudnnConvolutionBwdDataAlgo_t algorithm, const Arguments& a, const Scales& scales,
                  const Scratch& s) {
  const Tensors& t = a.tensors;
  return c.cudnnConvolutionBackwardData(handle, scales.alpha.data(), d.w, t.w, d.y, t.y, d.convolution,
                                        algorithm, s.data, s.size, scales.beta.data(), d.x, t.x);
}
cudnnStatus_t run(const Library& c, cudnnHandle_t handle, const Descriptors& d,
                  cudnnConvolutionBwdFilterAlgo_t algorithm, const Arguments& a, const Scales& scales,
                  const Scratch& s) {
  const Tensors& t = a.tensors;
  return c.cudnnConvolutionBackwardFilter(handle, scales.alpha.data(), d.x, t.x, d.y, t.y, d.convolution,
                                          algorithm, s.data, s.size, scales.beta.data(), d.w, t.w);
}

// Returns the notes on determinism and tensor cores from the heuristics' answer. The answer may leave out
// algorithms that cannot run.
template <typename Kind>
std::string notes_on(const std::vector<typename Kind::Performance>& described,
                     typename Kind::Algorithm algorithm) {
  for (const auto& result : described) {
    if (result.algo != algorithm) continue;
    std::string notes = result.determinism == CUDNN_DETERMINISTIC ? "deterministic" : "";
    if (result.mathType != CUDNN_DEFAULT_MATH && result.mathType != CUDNN_FMA_MATH) {
      notes += notes.empty() ? "tensor_op" : " tensor_op";
    }
    return notes;
  }
  return "";
}

// The answer of the heuristics; empty if they refuse to answer.
template <typename Kind>
struct Described {
  Described(const Context& context, const Descriptors& descriptors) : results(2 * std::size(Kind::kNames)) {
    int count = 0;
    status = describe(context, descriptors, static_cast<int>(results.size()), &count, results.data());
    results.resize(status == CUDNN_STATUS_SUCCESS ? static_cast<std::size_t>(count) : 0);
  }

  std::vector<typename Kind::Performance> results;
  cudnnStatus_t status;
};

template <typename Kind>
class LegacyKernel final : public PreparedKernel {
 public:
  LegacyKernel(std::shared_ptr<const Context> context, const Problem& problem, const std::string& algorithm)
      : context_(std::move(context)),
        descriptors_(context_->library(), problem),
        algorithm_(static_cast<typename Kind::Algorithm>(algorithm_named<Kind>(algorithm))),
        is_double_(problem.data_type == DataType::f64) {
    context_->library().check(mucudnn::workspace_size(*context_, descriptors_, algorithm_, &workspace_),
                              ("preparing " + algorithm).c_str());
  }

  std::size_t workspace() const override { return workspace_; }
  std::string notes() const override {
    return notes_on<Kind>(Described<Kind>(*context_, descriptors_).results, algorithm_);
  }

  void execute(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace) const override {
    const Scales scales{{arguments.alpha, is_double_},
                        {arguments.beta, is_double_},
                        {arguments.fusion ? arguments.fusion->z_scale : 0, is_double_}};
    const Library& library = context_->library();
    library.check(run(library, handle, descriptors_, algorithm_, arguments, scales, workspace),
                  Kind::kNames[static_cast<int>(algorithm_)]);
  }

 private:
  std::shared_ptr<const Context> context_;
  Descriptors descriptors_;
  typename Kind::Algorithm algorithm_;
  bool is_double_;
  std::size_t workspace_ = 0;
};

template <typename Kind>
Enumeration enumeration(const Context& context, const Problem& problem) {
  const Library& library = context.library();
  Enumeration all;
  const auto set_status = [&](Candidate& candidate, cudnnStatus_t status) {
    candidate.status = library.cudnnGetErrorString(status);
    candidate.is_lasting = is_lasting(status);
    all.note(status);
  };
  for (const char* name : Kind::kNames) all.candidates.emplace_back().algorithm = name;
  try {
    const Descriptors descriptors(library, problem);
    const Described<Kind> described(context, descriptors);
    all.note(described.status);
    for (std::size_t i = 0; i < all.candidates.size(); ++i) {
      const auto algorithm = static_cast<typename Kind::Algorithm>(i);
      Candidate& candidate = all.candidates[i];
      set_status(candidate, mucudnn::workspace_size(context, descriptors, algorithm, &candidate.workspace));
      candidate.notes = notes_on<Kind>(described.results, algorithm);
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

  Enumeration enumerate(const Problem& problem, Pass pass) override {
    if (problem.is_fused()) return {};
    switch (pass) {
      case Pass::forward:
        return enumeration<ForwardPass>(*context_, problem);
      case Pass::backward_data:
        return enumeration<BackwardDataPass>(*context_, problem);
      case Pass::backward_filter:
        break;
    }
    return enumeration<BackwardFilterPass>(*context_, problem);
  }

  std::unique_ptr<PreparedKernel> prepare(const Problem& problem, Pass pass,
                                          const std::string& algorithm) override {
    if (problem.is_fused())
      throw EngineError("the legacy API does not fuse '" + to_text(problem.epilogue) + "': " + algorithm);
    switch (pass) {
      case Pass::forward:
        return std::make_unique<LegacyKernel<ForwardPass>>(context_, problem, algorithm);
      case Pass::backward_data:
        return std::make_unique<LegacyKernel<BackwardDataPass>>(context_, problem, algorithm);
      case Pass::backward_filter:
        break;
    }
    return std::make_unique<LegacyKernel<BackwardFilterPass>>(context_, problem, algorithm);
  }

 private:
  std::shared_ptr<const Context> context_;
};

}  // namespace

const char* legacy_algorithm(Pass pass, unsigned enumerator) {
  const auto name = [&](const auto& names) {
    return enumerator >= std::size(names) ? nullptr : names[enumerator];
  };
  switch (pass) {
    case Pass::forward:
      return name(ForwardPass::kNames);
    case Pass::backward_data:
      return name(BackwardDataPass::kNames);
    case Pass::backward_filter:
      break;
  }
  return name(BackwardFilterPass::kNames);
}

std::unique_ptr<Engine> make_legacy_engine(std::shared_ptr<const Context> context) {
  return std::make_unique<LegacyEngine>(std::move(context));
}

}  // namespace mucudnn
