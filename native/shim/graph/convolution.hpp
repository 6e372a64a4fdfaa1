// Recognises the convolution, with its epilogue, in the shadow of an operation graph.
#pragma once

#include "cudnn/engines/convolution_graph.hpp"
#include "cudnn/recognise.hpp"
#include "shim/graph/epilogue.hpp"

#include <cstdint>

namespace mucudnn::shim {

struct GraphConvolution {
  bool is_convolution = false;  // the graph holds at least one convolution
  Recognised recognised{};      // without the math type: the graph API leaves it to the engine
  double alpha = 1;
  double beta = 0;
  std::int64_t x = 0, w = 0, y = 0;  // unique ids of the tensors
  OperandUids operands{};

  // Returns whether graph_engine.cpp plans its engines for these factors. Other factors would need a new
  // execution plan during the execution.
  bool is_planned() const {
    return alpha == 1 && (beta == 0 || (beta == 1 && adds_slices(recognised.kernel.pass)));
  }
};

GraphConvolution recognise_graph(const Shadow& graph);

}  // namespace mucudnn::shim
