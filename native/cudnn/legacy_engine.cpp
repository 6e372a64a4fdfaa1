#include "cudnn/legacy_engine.hpp"

#include <algorithm>
#include <array>
#include <limits>

namespace mucudnn {
namespace {

// What differs between the three passes: the names of the algorithms and, below, the calls.
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

// A cuDNN descriptor that is destroyed with its owner.
template <typename Descriptor>
class Owned {
 public:
  using Create = cudnnStatus_t (*)(Descriptor*);
  using Destroy = cudnnStatus_t (*)(Descriptor);

  Owned(const Library& library, Create create, Destroy destroy) : destroy_(destroy) {
    library.check(create(&descriptor_), "creating a descriptor");
  }
  ~Owned() { destroy_(descriptor_); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;

  operator Descriptor() const { return descriptor_; }  // NOLINT: it stands for the descriptor in calls

 private:
  Destroy destroy_;
  Descriptor descriptor_ = nullptr;
};

cudnnDataType_t cudnn_type(DataType type) {
  switch (type) {
    case DataType::f64:
      return CUDNN_DATA_DOUBLE;
    case DataType::f16:
      return CUDNN_DATA_HALF;
    case DataType::bf16:
      return CUDNN_DATA_BFLOAT16;
    case DataType::f32:
      break;
  }
  return CUDNN_DATA_FLOAT;
}

cudnnMathType_t cudnn_math(Math math) {
  switch (math) {
    case Math::tf32:
      return CUDNN_TENSOR_OP_MATH;
    case Math::strict:
      return CUDNN_FMA_MATH;
    case Math::standard:
      break;
  }
  return CUDNN_DEFAULT_MATH;
}

std::array<int, 5> tensor_sizes(std::int64_t first, std::int64_t second, const Problem::Sizes& sizes,
                                int dims) {
  std::array<int, 5> all{static_cast<int>(first), static_cast<int>(second)};
  for (int axis = 0; axis < dims; ++axis) all[2 + axis] = static_cast<int>(sizes[3 - dims + axis]);
  return all;
}

// Throws EngineError where one sample has more elements than cuDNN's 32-bit strides reach.
std::array<int, 5> packed_strides(const std::array<int, 5>& sizes, int dims, Layout layout) {
  std::array<std::int64_t, 5> strides{};
  std::int64_t step = layout == Layout::nhwc ? sizes[1] : 1;
  for (int axis = 1 + dims; axis >= 2; --axis) {
    strides[axis] = step;
    step *= sizes[axis];
  }
  strides[1] = layout == Layout::nhwc ? 1 : step;
  strides[0] = layout == Layout::nhwc ? step : step * sizes[1];
  if (strides[0] > std::numeric_limits<int>::max()) {
    throw EngineError("one sample has " + std::to_string(strides[0]) +
                      " elements, cuDNN takes up to 2147483647");
  }
  std::array<int, 5> narrow{};
  std::transform(strides.begin(), strides.end(), narrow.begin(),
                 [](std::int64_t s) { return static_cast<int>(s); });
  return narrow;
}

// The handle and the functions, shared by an engine and the kernels that it prepared.
class Context {
 public:
  explicit Context(std::shared_ptr<const Library> library) : library_(std::move(library)) {
    library_->check(library_->cudnnCreate(&handle_), "cudnnCreate");
  }
  ~Context() { library_->cudnnDestroy(handle_); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Library& library() const { return *library_; }
  cudnnHandle_t handle() const { return handle_; }

 private:
  std::shared_ptr<const Library> library_;
  cudnnHandle_t handle_ = nullptr;
};

// The descriptors of one problem.
class Descriptors {
 public:
  Descriptors(const Library& c, const Problem& p)
      : x(c, c.cudnnCreateTensorDescriptor, c.cudnnDestroyTensorDescriptor),
        y(c, c.cudnnCreateTensorDescriptor, c.cudnnDestroyTensorDescriptor),
        w(c, c.cudnnCreateFilterDescriptor, c.cudnnDestroyFilterDescriptor),
        convolution(c, c.cudnnCreateConvolutionDescriptor, c.cudnnDestroyConvolutionDescriptor) {
    const cudnnDataType_t type = cudnn_type(p.data_type);
    const auto set_tensor = [&](cudnnTensorDescriptor_t descriptor, std::int64_t channels,
                                const Problem::Sizes& sizes) {
      const auto all = tensor_sizes(p.mini_batch, channels, sizes, p.dims);
      const auto strides = packed_strides(all, p.dims, p.layout);
      c.check(c.cudnnSetTensorNdDescriptor(descriptor, type, 2 + p.dims, all.data(), strides.data()),
              "cudnnSetTensorNdDescriptor");
    };
    set_tensor(x, p.in_channels, p.input);
    set_tensor(y, p.out_channels, p.output);
    const auto filter = tensor_sizes(p.out_channels, p.in_channels / p.groups, p.kernel, p.dims);
    c.check(c.cudnnSetFilterNdDescriptor(w, type,
                                         p.layout == Layout::nhwc ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW,
                                         2 + p.dims, filter.data()),
            "cudnnSetFilterNdDescriptor");
    const auto padding = tensor_sizes(0, 0, p.padding, p.dims);
    const auto stride = tensor_sizes(0, 0, p.stride, p.dims);
    const auto dilation = tensor_sizes(0, 0, p.dilation, p.dims);
    c.check(c.cudnnSetConvolutionNdDescriptor(
                convolution, p.dims, &padding[2], &stride[2], &dilation[2], CUDNN_CROSS_CORRELATION,
                p.data_type == DataType::f64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT),
            "cudnnSetConvolutionNdDescriptor");
    c.check(c.cudnnSetConvolutionGroupCount(convolution, static_cast<int>(p.groups)),
            "cudnnSetConvolutionGroupCount");
    c.check(c.cudnnSetConvolutionMathType(convolution, cudnn_math(p.math)), "cudnnSetConvolutionMathType");
  }

  Owned<cudnnTensorDescriptor_t> x;
  Owned<cudnnTensorDescriptor_t> y;
  Owned<cudnnFilterDescriptor_t> w;
  Owned<cudnnConvolutionDescriptor_t> convolution;
};

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

cudnnStatus_t run(const Context& c, const Descriptors& d, cudnnConvolutionFwdAlgo_t algorithm,
                  const Tensors& t, const void* alpha, const void* beta, const Scratch& s) {
  return c.library().cudnnConvolutionForward(c.handle(), alpha, d.x, t.x, d.w, t.w, d.convolution, algorithm,
                                             s.data, s.size, beta, d.y, t.y);
}
cudnnStatus_t run(const Context& c, const Descriptors& d, cudnnConvolutionBwdDataAlgo_t algorithm,
                  const Tensors& t, const void* alpha, const void* beta, const Scratch& s) {
  return c.library().cudnnConvolutionBackwardData(c.handle(), alpha, d.w, t.w, d.y, t.y, d.convolution,
                                                  algorithm, s.data, s.size, beta, d.x, t.x);
}
cudnnStatus_t run(const Context& c, const Descriptors& d, cudnnConvolutionBwdFilterAlgo_t algorithm,
                  const Tensors& t, const void* alpha, const void* beta, const Scratch& s) {
  return c.library().cudnnConvolutionBackwardFilter(c.handle(), alpha, d.x, t.x, d.y, t.y, d.convolution,
                                                    algorithm, s.data, s.size, beta, d.w, t.w);
}

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

  void execute(const Tensors& tensors, double alpha, double beta, const Scratch& workspace) override {
    const auto alpha_float = static_cast<float>(alpha);
    const auto beta_float = static_cast<float>(beta);
    const void* scale = is_double_ ? static_cast<const void*>(&alpha) : &alpha_float;
    const void* keep = is_double_ ? static_cast<const void*>(&beta) : &beta_float;
    context_->library().check(run(*context_, descriptors_, algorithm_, tensors, scale, keep, workspace),
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
std::vector<Candidate> candidates(const Context& context, const Problem& problem) {
  const Library& library = context.library();
  const Descriptors descriptors(library, problem);
  constexpr int kCount = std::size(Kind::kNames);

  // Notes come from the heuristics' answer, which may leave out algorithms that cannot run.
  std::array<typename Kind::Performance, 2 * kCount> described{};
  int count = 0;
  if (describe(context, descriptors, 2 * kCount, &count, described.data()) != CUDNN_STATUS_SUCCESS) count = 0;

  std::vector<Candidate> all;
  for (int i = 0; i < kCount; ++i) {
    Candidate candidate;
    candidate.algorithm = Kind::kNames[i];
    const auto algorithm = static_cast<typename Kind::Algorithm>(i);
    candidate.status = library.cudnnGetErrorString(
        mucudnn::workspace_size(context, descriptors, algorithm, &candidate.workspace));
    const auto end = described.begin() + count;
    const auto found =
        std::find_if(described.begin(), end, [&](const auto& perf) { return perf.algo == algorithm; });
    if (found != end && found->determinism == CUDNN_DETERMINISTIC) candidate.notes = "deterministic";
    if (found != end && found->mathType != CUDNN_DEFAULT_MATH && found->mathType != CUDNN_FMA_MATH) {
      candidate.notes += candidate.notes.empty() ? "tensor_op" : " tensor_op";
    }
    all.push_back(std::move(candidate));
  }
  return all;
}

class LegacyEngine final : public Engine {
 public:
  explicit LegacyEngine(std::shared_ptr<const Library> library)
      : context_(std::make_shared<const Context>(std::move(library))) {}

  std::vector<Candidate> enumerate(const Problem& problem, Pass pass) override {
    switch (pass) {
      case Pass::forward:
        return candidates<ForwardPass>(*context_, problem);
      case Pass::backward_data:
        return candidates<BackwardDataPass>(*context_, problem);
      case Pass::backward_filter:
        break;
    }
    return candidates<BackwardFilterPass>(*context_, problem);
  }

  std::unique_ptr<PreparedKernel> prepare(const Problem& problem, Pass pass,
                                          const std::string& algorithm) override {
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

std::unique_ptr<Engine> make_legacy_engine(std::shared_ptr<const Library> library) {
  return std::make_unique<LegacyEngine>(std::move(library));
}

}  // namespace mucudnn
