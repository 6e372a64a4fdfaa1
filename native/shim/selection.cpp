#include "shim/selection.hpp"

namespace mucudnn::shim {

std::optional<Selection> select(State& state, const Asked& asked, Question question, std::int64_t own,
                                std::int64_t most) noexcept {
  const OwnWork guard;
  try {
    const char* obstacle = nullptr;
    SeenKernel* const kernel =
        state.see(recognise(state.library(), asked.descriptors), asked.pass, Api::legacy, obstacle);
    if (kernel == nullptr) return std::nullopt;
    const KnownKernel* const known = state.know(asked.handle, *kernel, true);
    if (known == nullptr) return std::nullopt;
    // Where the caller's own choice is the limit, nothing may sway it to one that takes more.
    const bool is_limited = state.limit() || known->is_planned();
    if (question == Question::which_algorithm && !is_limited) return std::nullopt;
    const Point* const point = known->choose(asked.algorithm, most);
    if (point == nullptr || known->is_own(*point, asked.algorithm)) return std::nullopt;
    const std::int64_t limit = std::min(known->limit(asked.algorithm), most);
    std::int64_t workspace = point->workspace;
    if (own <= limit) {
      workspace = std::max(workspace, own);
    } else if (asked.pass == Pass::forward &&
               asked.algorithm == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM) {
      // cuDNN fuses no activation with this algorithm alone, so that such a call runs in slices of it.
      const std::int64_t one = state.one_sample_workspace(asked.handle, *kernel, asked.algorithm);
      if (one <= limit) workspace = std::max(workspace, one);
    }
    state.answers().note(workspace, own);
    return Selection{point, workspace};
  } catch (...) {  // out of memory: the library's own answer stands
    return std::nullopt;
  }
}

cudnnMathType_t math_of(const State& state, const CallerDescriptors& descriptors) noexcept {
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
  state.library().cudnnGetConvolutionMathType(descriptors.convolution, &math);
  return math;
}

}  // namespace mucudnn::shim
