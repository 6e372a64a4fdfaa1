// The operation graph of one convolution with its epilogue, and the plans of its engines.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "core/problem.hpp"
#include "cudnn/context.hpp"
#include "cudnn/engine_name.hpp"

namespace mucudnn {

// What a plan is made for besides its problem: output = alpha * convolution + beta * output, on addresses
// that are multiples of `alignment` bytes, which is 1, 2, 4, 8 or 16.
struct Terms {
  double alpha = 1;
  double beta = 0;
  std::int64_t alignment = 16;

  bool operator==(const Terms& other) const {
    return alpha == other.alpha && beta == other.beta && alignment == other.alignment;
  }
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
  // Of what an operation of the epilogue reads besides.
  static std::int64_t operand_uid(std::size_t operation);

  // Throws CallFailed where the library takes no such problem. The context outlives it.
  ConvolutionGraph(const Context& context, const Problem& problem, Pass pass, const Terms& terms);

  // What the heuristics of a mode name, the best first. Throws CallFailed, as where they do not know the
  // problem.
  void add_heuristics(cudnnBackendHeurMode_t mode, std::vector<EngineName>& names) const;
  // Engines have the numbers below this.
  std::int64_t engine_count() const;
  // Throws CallFailed where the library has no engine of this number for this problem and device.
  EngineNotes notes(std::int64_t engine) const;
  // Throws CallFailed where it cannot run.
  EnginePlan plan(const EngineName& name) const;

 private:
  // Each keeps what it makes in parts_.
  const Backend& tensor(const Problem& problem, std::int64_t uid, const std::vector<std::int64_t>& sizes,
                        std::int64_t alignment);
  const Backend& intermediate(const Problem& problem, std::size_t operation);
  const Backend& convolution(const Problem& problem);
  const Backend& function(const Problem& problem, Pointwise operation);
  void add_convolution(const Problem& problem, Pass pass, const Terms& terms, const Backend& y);
  void add_epilogue(const Problem& problem, const Terms& terms, const Backend& convolved, const Backend& y);
  Backend engine(std::int64_t number) const;

  const Context& context_;
  std::deque<Backend> parts_;  // what the operations refer to
  std::vector<Backend> operations_;
  Backend graph_;
};

}  // namespace mucudnn
