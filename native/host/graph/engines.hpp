// Descriptors of engines, their configurations and the heuristics that choose among them. An engine of the
// host's graph API is the legacy algorithm with the same number. The engine of explicit GEMM has a knob, the
// tile size of its Variant.
#pragma once

#include "host/graph/operation_graph.hpp"

#include <cstdint>

namespace mucudnn::host::graph {

constexpr std::int64_t kUnchosen = -1;  // the value of a knob that the engine sets itself

// An engine's knob.
class KnobInfo : public Descriptor {
 public:
  // Only an engine makes a knob that can be finalized.
  explicit KnobInfo(bool is_tile_size = false) : is_tile_size_(is_tile_size) {}

  void attributes(Access& access) override;
  void complete() override;

 private:
  const bool is_tile_size_;
};

class Engine : public Descriptor {
 public:
  std::shared_ptr<OperationGraph> graph;
  std::int64_t index = -1;

  Algorithm algorithm() const { return algorithm_; }
  bool has_tile_size() const { return algorithm_ == Algorithm::explicit_gemm; }

  void attributes(Access& access) override;
  void complete() override;

 private:
  std::int32_t processors_ = 0;
  Algorithm algorithm_ = Algorithm::implicit_gemm;
  std::vector<std::shared_ptr<KnobInfo>> knobs_;
};

class KnobChoice : public Descriptor {
 public:
  cudnnBackendKnobType_t type{};
  std::int64_t value = kUnchosen;

  void attributes(Access& access) override;
  void complete() override {}
};

class EngineConfig : public Descriptor {
 public:
  std::shared_ptr<Engine> engine;
  std::vector<std::shared_ptr<KnobChoice>> choices;  // at most one for each knob

  Variant variant() const;
  std::size_t workspace() const { return workspace_; }

  void attributes(Access& access) override;
  void complete() override;

 private:
  std::size_t workspace_ = 0;
};

class Heuristics : public Descriptor {
 public:
  void attributes(Access& access) override;
  void complete() override;

 private:
  std::shared_ptr<OperationGraph> graph_;
  cudnnBackendHeurMode_t mode_ = CUDNN_HEUR_MODES_COUNT;  // no mode: there are no results
  std::int32_t processors_ = 0;
  std::vector<std::shared_ptr<EngineConfig>> results_;  // the best first
};

}  // namespace mucudnn::host::graph
