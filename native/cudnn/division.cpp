#include "cudnn/division.hpp"

#include <algorithm>

namespace mucudnn {

Division::Division(Engine& engine, Device& device, const Problem& problem, Pass pass,
                   const std::vector<Slice>& slices)
    : device_(device), problem_(problem), pass_(pass) {
  std::int64_t left = problem.mini_batch;
  const bool in_range = std::all_of(slices.begin(), slices.end(), [&](const Slice& slice) {
    if (slice.micro_batch < 1 || slice.micro_batch > left) return false;
    left -= slice.micro_batch;
    return true;
  });
  if (!in_range || left != 0) {
    throw std::invalid_argument("the micro-batches do not add to the mini-batch of " +
                                std::to_string(problem.mini_batch));
  }
  for (const Slice& slice : slices) {
    auto& kernel = kernels_[{slice.micro_batch, slice.algorithm}];
    if (kernel == nullptr)
      kernel = engine.prepare(problem.with_mini_batch(slice.micro_batch), pass, slice.algorithm);
    algorithms_workspace_ = std::max(algorithms_workspace_, kernel->workspace());
    steps_.push_back({slice.micro_batch, kernel.get()});
  }
  accumulator_size_ = required_accumulator(device, problem, pass, slices.size());
}

Tensors Division::advanced(const Tensors& tensors, std::int64_t samples) const {
  const auto item = static_cast<std::int64_t>(size_of(problem_.data_type));
  return {tensors.x + samples * problem_.x_sample() * item, tensors.w,
          tensors.y + samples * problem_.y_sample() * item};
}

void Division::run(const Tensors& tensors, double alpha, double beta, const Scratch& workspace) const {
  if (workspace.size < this->workspace()) {
    throw EngineError("the division needs a workspace of " + std::to_string(this->workspace()) + " bytes, " +
                      std::to_string(workspace.size) + " are given");
  }
  if (accumulator_size_ > 0) return run_accumulated(tensors, alpha, beta, workspace);
  std::int64_t done = 0;
  for (const Step& step : steps_) {
    // The slices of forward and backward_data write disjoint outputs; those of backward_filter add to one.
    const double keep = pass_ == Pass::backward_filter && done > 0 ? 1.0 : beta;
    step.kernel->execute(advanced(tensors, done), alpha, keep, workspace);
    done += step.micro_batch;
  }
}

void Division::run_accumulated(const Tensors& tensors, double alpha, double beta,
                               const Scratch& workspace) const {
  FilterSum sum(*device_.accumulator(), problem_, workspace.data + aligned(algorithms_workspace_));
  const Scratch algorithms{workspace.data, algorithms_workspace_};
  std::int64_t done = 0;
  for (const Step& step : steps_) {
    Tensors at = advanced(tensors, done);
    at.w = sum.slice();
    step.kernel->execute(at, alpha, 0.0, algorithms);
    sum.add_slice();
    done += step.micro_batch;
  }
  sum.store(beta, tensors.w);
}

}  // namespace mucudnn
