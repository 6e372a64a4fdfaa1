#include "shim/execution/selection.hpp"

namespace mucudnn::shim {

std::optional<Selection> select(State& state, const Query& query, Question question, std::int64_t own,
                                std::int64_t most) noexcept {
  const RecursionGuard guard;
  try {
    Obstacle obstacle;
    const auto seen = state.find_or_add_kernel(recognise(state.library(), query.descriptors, query.pass),
                                               Api::legacy, obstacle);
    if (seen == nullptr) return std::nullopt;
    const KnownKernel* const known = state.find_or_decide(query.handle, *seen, true);
    if (known == nullptr) return std::nullopt;
    // Without a limit and a plan, the workspace of the caller's algorithm is the limit. A different answer
    // could lead the caller to an algorithm that takes more.
    const bool is_limited = state.limit() || known->is_planned();
    if (question == Question::which_algorithm && !is_limited) return std::nullopt;
    const PreparedChoice* const choice = known->choice_for(query.algorithm, most, true);
    if (choice == nullptr || is_callers_own(*choice, legacy_algorithm(query.pass, query.algorithm)))
      return std::nullopt;
    const std::int64_t limit = std::min(known->limit(query.algorithm), most);
    std::int64_t workspace = choice->workspace;
    if (own <= limit) {
      workspace = std::max(workspace, own);
    } else if (query.pass == Pass::forward &&
               query.algorithm == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM) {
      // cuDNN accepts "no activation" in a fused call with this algorithm only, and we answer before we know
      // whether the call is fused. Such a call runs in slices of this algorithm, so one sample must fit.
      const auto sample =
          state.decider(*seen).prepare_slices(query.handle, seen->kernel.with_mini_batch(1), seen->api,
                                              legacy_algorithm(query.pass, query.algorithm), 1);
      if (sample && sample->workspace <= limit) workspace = std::max(workspace, sample->workspace);
    }
    state.answers().note(workspace, own);
    return Selection{seen, choice, workspace};
  } catch (...) {  // out of memory: the library's own answer stands
    return std::nullopt;
  }
}

cudnnMathType_t math_of(const State& state, const LegacyDescriptors& descriptors) noexcept {
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
  state.library().cudnnGetConvolutionMathType(descriptors.convolution, &math);
  return math;
}

}  // namespace mucudnn::shim
