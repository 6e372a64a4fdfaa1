#include "cudnn/combined_engine.hpp"

#include <algorithm>
#include <iterator>

#include "cudnn/engine_name.hpp"
#include "cudnn/graph_engine.hpp"
#include "cudnn/legacy_engine.hpp"

namespace mucudnn {
namespace {

class CombinedEngine final : public Engine {
 public:
  // Uses the graph API for all problems, or for fused and mixed ones only.
  CombinedEngine(const std::shared_ptr<const Context>& context, bool for_all, bool constant_filters)
      : legacy_(make_legacy_engine(context)),
        graph_(make_graph_engine(context)),
        for_all_(for_all),
        constant_filters_(constant_filters) {}

  cudnnHandle_t handle() const override { return legacy_->handle(); }
  bool has_constant_filters() const override { return constant_filters_; }

  Enumeration enumerate(const Kernel& kernel) override {
    Enumeration all = legacy_->enumerate(kernel);
    if (!has_engines_for(kernel.problem)) return all;
    Enumeration engines = graph_->enumerate(kernel);
    std::move(engines.candidates.begin(), engines.candidates.end(), std::back_inserter(all.candidates));
    all.is_complete = all.is_complete && engines.is_complete;
    return all;
  }

  std::unique_ptr<PreparedKernel> prepare(const Kernel& kernel, const std::string& algorithm,
                                          const Pitch& pitch) override {
    const bool is_engine = has_engines_for(kernel.problem) && parse_engine_name(algorithm);
    return (is_engine ? graph_ : legacy_)->prepare(kernel, algorithm, pitch);
  }

 private:
  bool has_engines_for(const Problem& problem) const {
    return for_all_ || problem.is_fused() || problem.is_mixed();
  }

  std::unique_ptr<Engine> legacy_;
  std::unique_ptr<Engine> graph_;
  bool for_all_, constant_filters_;
};

}  // namespace

std::unique_ptr<Engine> make_combined_engine(std::shared_ptr<const Context> context) {
  return std::make_unique<CombinedEngine>(context, true, false);
}

std::unique_ptr<Engine> make_plain_engine(std::shared_ptr<const Context> context, bool constant_filters) {
  return std::make_unique<CombinedEngine>(context, false, constant_filters);
}

}  // namespace mucudnn
