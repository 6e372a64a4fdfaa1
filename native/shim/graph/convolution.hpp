// From the shadow of an operation graph to the convolution that it computes, with its epilogue.
#pragma once

#include "cudnn/convolution_graph.hpp"
#include "cudnn/recognise.hpp"
#include "shim/graph/epilogue.hpp"

namespace mucudnn::shim {

struct GraphConvolution {
  bool is_convolution = false;  // whether there is one in the graph at all
  Recognised recognised{};      // but for the math, which is the engine's
  Pass pass = Pass::forward;
  double alpha = 1;
  double beta = 0;
  std::int64_t x = 0, w = 0, y = 0;  // unique ids
  OperandUids operands{};
};

GraphConvolution recognise_graph(const Shadow& graph);

}  // namespace mucudnn::shim
