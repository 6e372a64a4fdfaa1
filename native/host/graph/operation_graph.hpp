// The descriptor of an operation graph, and the form in which the host engine runs it.
#pragma once

#include <cstdint>
#include <optional>

#include "host/abi/epilogue.hpp"
#include "host/graph/operations.hpp"

namespace mucudnn::host::graph {

// An input as the program has it, and as the algorithms read it: in the output's layout and data type, and
// flipped if it is the filter of a CUDNN_CONVOLUTION, since the algorithms compute cross-correlations.
struct Copy {
  std::size_t tensor = 0;  // 0: x, 1: w, 2: y
  cudnnTensorStruct from, to;
  std::size_t first = 0;  // the element of `from` that is copied first

  std::size_t size() const;  // in bytes, a multiple of kAlignment
};

// A graph that the host engine can run: one convolution, with pointwise steps in place after a forward one.
struct Fusion {
  Kernel kernel;
  Pitch pitch;
  std::array<std::int64_t, 3> uids{};  // unique ids of x, w and y
  cudnnTensorStruct output;
  double alpha = 1;
  double beta = 0;            // the factor of `residual`
  std::int64_t residual = 0;  // unique id: the output, or a tensor like it that is added first
  std::vector<Step> steps;
  std::vector<std::int64_t> operands;  // unique ids for the additions in `steps`, in order
  // Inputs that the algorithms do not read as they are. The plan copies them into the workspace first.
  std::vector<Copy> copies;

  // Returns the bytes of workspace that the copies take, with room to align them.
  std::size_t copies_size() const;
};

class OperationGraph : public Descriptor {
 public:
  std::vector<std::shared_ptr<Operation>> operations;

  // Throws Failure, NOT_SUPPORTED, if the host engine cannot run the graph.
  const Fusion& fusion() const;

  void attributes(Access& access) override;
  void complete() override;

 private:
  cudnnHandle_t handle_ = nullptr;
  bool dynamic_shapes_ = false;
  std::optional<Fusion> fusion_;
  std::string reason_;  // why the engine cannot run the graph; empty if there is a fusion
};

}  // namespace mucudnn::host::graph
