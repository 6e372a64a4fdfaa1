#include "cudnn/combined_engine.hpp"

#include "cudnn/engine_name.hpp"
#include "cudnn/graph_engine.hpp"
#include "cudnn/legacy_engine.hpp"

namespace mucudnn {
namespace {

class CombinedEngine final : public Engine {
 public:
  explicit CombinedEngine(const std::shared_ptr<const Context>& context)
      : legacy_(make_legacy_engine(context)), graph_(make_graph_engine(context)) {}

  cudnnHandle_t handle() const override { return legacy_->handle(); }

  std::vector<Candidate> enumerate(const Problem& problem, Pass pass) override {
    std::vector<Candidate> all = legacy_->enumerate(problem, pass);
    for (Candidate& candidate : graph_->enumerate(problem, pass)) all.push_back(std::move(candidate));
    return all;
  }

  std::unique_ptr<PreparedKernel> prepare(const Problem& problem, Pass pass,
                                          const std::string& algorithm) override {
    return (parse_engine_name(algorithm) ? graph_ : legacy_)->prepare(problem, pass, algorithm);
  }

 private:
  std::unique_ptr<Engine> legacy_;
  std::unique_ptr<Engine> graph_;
};

}  // namespace

std::unique_ptr<Engine> make_combined_engine(std::shared_ptr<const Context> context) {
  return std::make_unique<CombinedEngine>(context);
}

}  // namespace mucudnn
