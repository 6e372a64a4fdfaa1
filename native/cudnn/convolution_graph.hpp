// The operation graph of one convolution, and the plans of its engines.
#pragma once

#include <string>
#include <vector>

#include "core/problem.hpp"
#include "cudnn/context.hpp"
#include "cudnn/engine_name.hpp"

namespace mucudnn {

// output = alpha * convolution + beta * output. In the graph API they belong to the operation.
struct Factors {
  double alpha = 1;
  double beta = 0;
};

// An engine as it says of itself.
struct EngineNotes {
  std::vector<cudnnBackendNumericalNote_t> numerical;
  std::vector<cudnnBackendBehaviorNote_t> behavior;

  bool has(cudnnBackendNumericalNote_t note) const;
  bool has(cudnnBackendBehaviorNote_t note) const;
  // In words, spaces between, `deterministic` first.
  std::string text() const;
};

// Of an engine and of an engine's configuration, both finalized. They throw CallFailed.
EngineNotes notes_of(const Backend& engine);
Backend engine_of(const Backend& config);
EngineName name_of(const Backend& config);

// What the operation of a pass calls its parts.
struct OperationAttributes {
  cudnnBackendDescriptorType_t operation;
  cudnnBackendAttributeName_t x, w, y, convolution, alpha, beta;
};
OperationAttributes attributes_of(Pass pass);

struct EnginePlan {
  Backend descriptor;
  std::size_t workspace = 0;
  EngineNotes notes;
};

class ConvolutionGraph {
 public:
  enum Uid : std::int64_t { kX = 'x', kW = 'w', kY = 'y' };

  // Throws CallFailed where the library takes no such problem. The context outlives it.
  ConvolutionGraph(const Context& context, const Problem& problem, Pass pass, const Factors& factors);

  // What the heuristics of a mode name, the best first; nothing where they do not know the problem.
  std::vector<EngineName> heuristics(cudnnBackendHeurMode_t mode) const;
  // Engines have the numbers below this.
  std::int64_t engine_count() const;
  // Throws CallFailed where the library has no engine of this number for this problem and device.
  Backend engine(std::int64_t number) const;
  // Throws CallFailed where it cannot run.
  EnginePlan plan(const EngineName& name) const;

 private:
  const Context& context_;
  Backend x_, w_, y_, convolution_, operation_, graph_;
};

}  // namespace mucudnn
