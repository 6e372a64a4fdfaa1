// The descriptor of a graph, and what the host engine makes of it.
#pragma once

#include <optional>

#include "host/abi/epilogue.hpp"
#include "host/graph/operations.hpp"

namespace mucudnn::host::graph {

// A graph that the host engine runs: one convolution, with what follows a forward one in place.
struct Fusion {
  Pass pass = Pass::forward;
  Problem problem;
  std::int64_t x = 0, w = 0, y = 0;  // unique ids
  cudnnTensorStruct output;
  double alpha = 1;
  double beta = 0;            // of `residual`
  std::int64_t residual = 0;  // the output itself, unless a tensor like it is added first
  std::vector<Step> steps;
  std::vector<std::int64_t> operands;  // of the additions among the steps, in their order
};

class OperationGraph : public Descriptor {
 public:
  std::vector<std::shared_ptr<Operation>> operations;

  // Throws Failure, NOT_SUPPORTED, where the host engine does not run the graph.
  const Fusion& fusion() const;

  void attributes(Access& access) override;

 protected:
  void complete() override;

 private:
  void* handle_ = nullptr;
  bool dynamic_shapes_ = false;
  std::optional<Fusion> fusion_;
  std::string reason_;  // why there is no fusion
};

}  // namespace mucudnn::host::graph
