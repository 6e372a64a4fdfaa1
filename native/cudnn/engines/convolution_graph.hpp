// The operation graph of one convolution with its epilogue, and the execution plans of its engines.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "abi/convolution_operations.hpp"
#include "core/kernel.hpp"
#include "core/tensors.hpp"
#include "cudnn/context.hpp"
#include "cudnn/engines/engine_name.hpp"

namespace mucudnn {

// The conditions that an execution plan is made for besides its problem: output = alpha * convolution + beta
// * output, on addresses that are multiples of `alignment` bytes. The alignment is 1, 2, 4, 8 or 16.
struct PlanTerms {
  double alpha = 1;
  double beta = 0;
  std::int64_t alignment = 16;

  bool operator==(const PlanTerms& other) const {
    return alpha == other.alpha && beta == other.beta && alignment == other.alignment;
  }
};

// The notes that an engine of the graph API carries about itself.
struct EngineNotes {
  std::vector<cudnnBackendNumericalNote_t> numerical;
  std::vector<cudnnBackendBehaviorNote_t> behavior;

  bool has(cudnnBackendNumericalNote_t note) const;
  bool has(cudnnBackendBehaviorNote_t note) const;
  // Returns the notes as words separated by spaces, `deterministic` first.
  std::string text() const;
};

// These take a finalized engine or a finalized engine configuration. They throw CallFailed.
EngineNotes notes_of(const Backend& engine);
Backend engine_of(const Backend& config);
EngineName name_of(const Backend& config);

// Returns the operation of a pass and the attributes that hold its parts.
constexpr const OperationAttributes& attributes_of(Pass pass) {
  return kConvolutionOperations[static_cast<int>(pass)];
}

struct EnginePlan {
  Backend descriptor;
  std::size_t workspace = 0;
  EngineNotes notes;
};

class ConvolutionGraph {
 public:
  enum Uid : std::int64_t { kX = 'x', kW = 'w', kY = 'y' };
  // The unique id of the tensor that an operation of the epilogue reads besides y.
  static std::int64_t operand_uid(std::size_t operation);

  // Throws CallFailed if the library does not take the problem. The context must outlive the graph.
  ConvolutionGraph(const Context& context, const Kernel& kernel, const PlanTerms& terms,
                   const Pitch& pitch = {});

  // Appends the engines that the heuristics of a mode recommend, the best first. Throws CallFailed, also if
  // the heuristics do not know the problem.
  void add_heuristics(cudnnBackendHeurMode_t mode, std::vector<EngineName>& names) const;
  // Returns the number of engines. They are numbered from 0.
  std::int64_t engine_count() const;
  // Throws CallFailed if the library has no engine of this number for this problem and device.
  EngineNotes notes(std::int64_t engine) const;
  // Throws CallFailed if the engine cannot run.
  EnginePlan plan(const EngineName& name) const;

 private:
  // Each of these functions stores the descriptor that it makes in parts_.
  const Backend& tensor(std::int64_t uid, const std::vector<std::int64_t>& sizes,
                        const std::vector<std::int64_t>& sizes_in_memory, cudnnDataType_t type, Layout layout,
                        std::int64_t alignment, bool is_virtual = false);
  const Backend& intermediate(const Problem& problem, std::size_t operation);
  const Backend& convolution(const Problem& problem);
  const Backend& function(const Problem& problem, PointwiseKind kind);
  void add_convolution(const Kernel& kernel, const PlanTerms& terms, const Pitch& pitch, const Backend& y);
  void add_epilogue(const Problem& problem, const PlanTerms& terms, const Pitch& pitch,
                    const Backend& convolved, const Backend& y);
  Backend engine(std::int64_t number) const;

  const Context& context_;
  std::deque<Backend> parts_;  // the descriptors that operations_ refer to
  std::vector<Backend> operations_;
  Backend graph_;
};

}  // namespace mucudnn
