#include "shim/selection.hpp"

namespace mucudnn::shim {

const Point* select(State& state, cudnnHandle_t handle, const CallerDescriptors& descriptors, Pass pass,
                    Question question, unsigned algorithm, std::int64_t workspace) noexcept {
  const OwnWork guard;
  try {
    const char* obstacle = nullptr;
    SeenKernel* const kernel =
        state.see(recognise(state.library(), descriptors), pass, Api::legacy, obstacle);
    if (kernel == nullptr) return nullptr;
    const KnownKernel* const known = state.know(handle, *kernel, true);
    if (known == nullptr) return nullptr;
    // Where the caller's own choice is the limit, nothing may sway it to one that takes more.
    const bool is_limited = state.limit() || known->is_planned();
    if (question == Question::which_algorithm && !is_limited) return nullptr;
    const Point* const point = known->choose(algorithm, workspace);
    return point == nullptr || known->is_own(*point, algorithm) ? nullptr : point;
  } catch (...) {  // out of memory: the library's own answer stands
    return nullptr;
  }
}

cudnnMathType_t math_of(const State& state, const CallerDescriptors& descriptors) noexcept {
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
  state.library().cudnnGetConvolutionMathType(descriptors.convolution, &math);
  return math;
}

}  // namespace mucudnn::shim
