// Descriptors of operations: the nodes of a graph, and their tensors its edges.
#pragma once

#include "core/problem.hpp"
#include "host/graph/operands.hpp"

namespace mucudnn::host::graph {

class Operation : public Descriptor {
 public:
  // What it writes; nothing where the host engine cannot tell.
  virtual std::shared_ptr<Tensor> output() const = 0;
};

class ConvolutionOperation : public Operation {
 public:
  explicit ConvolutionOperation(Pass which) : pass(which) {}

  const Pass pass;
  std::shared_ptr<Tensor> x, w, y;  // x and y stand for dx and dy too, w for dw
  std::shared_ptr<Convolution> convolution;
  Scalar alpha{1}, beta{0};

  std::shared_ptr<Tensor> output() const override;
  // The convolution in as many groups as the channels of x and w give.
  cudnnConvolutionStruct grouped() const;

  void attributes(Access& access) override;

 protected:
  void complete() override;
};

class PointwiseOperation : public Operation {
 public:
  std::shared_ptr<Pointwise> pointwise;
  std::shared_ptr<Tensor> x, b, y;
  std::shared_ptr<Tensor> t, dx, dy;  // of operations that the host engine does not have
  Scalar alpha1{1}, alpha2{1};

  std::shared_ptr<Tensor> output() const override { return y; }

  void attributes(Access& access) override;

 protected:
  void complete() override;
};

}  // namespace mucudnn::host::graph
