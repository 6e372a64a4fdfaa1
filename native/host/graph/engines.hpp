// Descriptors of engines, their configurations and the heuristics that choose among them. An engine of the
// host is an algorithm of the legacy API under the same number, and has no knobs.
#pragma once

#include "host/graph/operation_graph.hpp"

namespace mucudnn::host::graph {

class Engine : public Descriptor {
 public:
  std::shared_ptr<OperationGraph> graph;
  std::int64_t index = -1;

  Algorithm algorithm() const { return algorithm_; }
  std::size_t workspace() const { return workspace_; }

  void attributes(Access& access) override;

 protected:
  void complete() override;

 private:
  std::int32_t processors_ = 0;
  Algorithm algorithm_ = Algorithm::implicit_gemm;
  std::size_t workspace_ = 0;
};

// Of the knobs that an engine has; none of the host's is ever finalized.
class KnobInfo : public Descriptor {
 public:
  void attributes(Access& access) override;

 protected:
  void complete() override { bad_parameter("an engine fills in what its knobs are"); }
};

class KnobChoice : public Descriptor {
 public:
  void attributes(Access& access) override;

 protected:
  void complete() override {}

 private:
  cudnnBackendKnobType_t type_{};
  std::int64_t value_ = -1;
};

class EngineConfig : public Descriptor {
 public:
  std::shared_ptr<Engine> engine;

  void attributes(Access& access) override;

 protected:
  void complete() override;

 private:
  std::vector<std::shared_ptr<KnobChoice>> choices_;
};

class Heuristics : public Descriptor {
 public:
  void attributes(Access& access) override;

 protected:
  void complete() override;

 private:
  std::shared_ptr<OperationGraph> graph_;
  cudnnBackendHeurMode_t mode_ = CUDNN_HEUR_MODES_COUNT;  // none, which has no results
  std::int32_t processors_ = 0;
  std::vector<std::shared_ptr<EngineConfig>> results_;  // the best first
};

}  // namespace mucudnn::host::graph
