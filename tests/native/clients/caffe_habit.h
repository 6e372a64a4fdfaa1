// Caffe asks for the algorithms in the expected order (Get*Algorithm_v7), takes the first within its limit,
// and asks for the workspace of that one (Get*WorkspaceSize).
#pragma once

#include <vector>

#include "client.h"

struct Selection {
  int algorithm;
  size_t workspace;
};

template <typename Performance>
int first_within(const std::vector<Performance>& ranked, size_t limit) {
  for (const Performance& candidate : ranked) {
    if (candidate.status == CUDNN_STATUS_SUCCESS && candidate.memory <= limit) return candidate.algo;
  }
  fail("no algorithm", "fits the limit");
  return 0;
}

#define SELECT(Pass, Algorithm, Performance, first, second, third)                                    \
  int count = 0;                                                                                      \
  CUDNN(cudnnGetConvolution##Pass##AlgorithmMaxCount(c.handle, &count));                              \
  std::vector<Performance> ranked(static_cast<size_t>(count));                                        \
  CUDNN(cudnnGetConvolution##Pass##Algorithm_v7(c.handle, first, second, c.convolution, third, count, \
                                                &count, ranked.data()));                              \
  ranked.resize(static_cast<size_t>(count));                                                          \
  Selection selection{first_within(ranked, limit), 0};                                                \
  CUDNN(cudnnGetConvolution##Pass##WorkspaceSize(c.handle, first, second, c.convolution, third,       \
                                                 static_cast<Algorithm>(selection.algorithm),         \
                                                 &selection.workspace));                              \
  return selection

inline Selection select_forward(const Client& c, size_t limit) {
  SELECT(Forward, cudnnConvolutionFwdAlgo_t, cudnnConvolutionFwdAlgoPerf_t, c.x_descriptor, c.w_descriptor,
         c.y_descriptor);
}
inline Selection select_backward_data(const Client& c, size_t limit) {
  SELECT(BackwardData, cudnnConvolutionBwdDataAlgo_t, cudnnConvolutionBwdDataAlgoPerf_t, c.w_descriptor,
         c.y_descriptor, c.x_descriptor);
}
inline Selection select_backward_filter(const Client& c, size_t limit) {
  SELECT(BackwardFilter, cudnnConvolutionBwdFilterAlgo_t, cudnnConvolutionBwdFilterAlgoPerf_t, c.x_descriptor,
         c.y_descriptor, c.w_descriptor);
}
#undef SELECT

inline Selection select(const Client& client, size_t limit) {
  switch (client.pass) {
    case kForward:
      return select_forward(client, limit);
    case kBackwardData:
      return select_backward_data(client, limit);
    case kBackwardFilter:
      break;
  }
  return select_backward_filter(client, limit);
}
