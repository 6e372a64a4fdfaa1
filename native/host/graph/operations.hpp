// Descriptors of operations, the nodes of a graph. Their tensors are its edges.
#pragma once

#include "core/kernel.hpp"
#include "host/graph/operands.hpp"

namespace mucudnn::host::graph {

class Operation : public Descriptor {
 public:
  // Returns the tensor that the operation writes; nothing if the host engine does not know the operation.
  virtual std::shared_ptr<Tensor> output() const = 0;
};

class ConvolutionOperation : public Operation {
 public:
  explicit ConvolutionOperation(Pass which) : pass(which) {}

  const Pass pass;
  std::shared_ptr<Tensor> x, w, y;  // x, w and y also mean their gradients
  std::shared_ptr<Convolution> convolution;
  Scalar alpha{1}, beta{0};

  std::shared_ptr<Tensor> output() const override;
  // Returns the convolution with as many groups as the channels of x and w give.
  cudnnConvolutionStruct grouped() const;

  void attributes(Access& access) override;
  void complete() override;
};

class PointwiseOperation : public Operation {
 public:
  std::shared_ptr<Pointwise> pointwise;
  std::shared_ptr<Tensor> x, b, y;
  Scalar alpha1{1}, alpha2{1};

  std::shared_ptr<Tensor> output() const override { return y; }

  void attributes(Access& access) override;
  void complete() override;
};

}  // namespace mucudnn::host::graph
