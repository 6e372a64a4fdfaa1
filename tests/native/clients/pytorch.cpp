// Like PyTorch's legacy path, lets cuDNN time the algorithms on the tensors themselves, within a workspace
// (Find*AlgorithmEx). Then it runs the fastest one with the math type and the workspace that cuDNN reported.
#include <vector>

#include "client.h"

struct Found {
  int algorithm;
  size_t memory;
  cudnnMathType_t math;
};

template <typename Performance>
Found first_of(const std::vector<Performance>& ranked, int count) {
  for (int i = 0; i < count; ++i) {
    const Performance& candidate = ranked[static_cast<size_t>(i)];
    if (candidate.status == CUDNN_STATUS_SUCCESS)
      return {static_cast<int>(candidate.algo), candidate.memory, candidate.mathType};
  }
  fail("no algorithm", "ran");
  return {};
}

static Found find(const Client& c, void* workspace, size_t size) {
  constexpr int kMost = 16;
  int count = 0;
  if (c.pass == kForward) {
    std::vector<cudnnConvolutionFwdAlgoPerf_t> ranked(kMost);
    CUDNN(cudnnFindConvolutionForwardAlgorithmEx(c.handle, c.x_descriptor, c.x, c.w_descriptor, c.w,
                                                 c.convolution, c.y_descriptor, c.y, kMost, &count,
                                                 ranked.data(), workspace, size));
    return first_of(ranked, count);
  }
  if (c.pass == kBackwardData) {
    std::vector<cudnnConvolutionBwdDataAlgoPerf_t> ranked(kMost);
    CUDNN(cudnnFindConvolutionBackwardDataAlgorithmEx(c.handle, c.w_descriptor, c.w, c.y_descriptor, c.y,
                                                      c.convolution, c.x_descriptor, c.x, kMost, &count,
                                                      ranked.data(), workspace, size));
    return first_of(ranked, count);
  }
  std::vector<cudnnConvolutionBwdFilterAlgoPerf_t> ranked(kMost);
  CUDNN(cudnnFindConvolutionBackwardFilterAlgorithmEx(c.handle, c.x_descriptor, c.x, c.y_descriptor, c.y,
                                                      c.convolution, c.w_descriptor, c.w, kMost, &count,
                                                      ranked.data(), workspace, size));
  return first_of(ranked, count);
}

int main(int count, char** arguments) {
  const Options options = read_options(count, arguments);
  const Client client = open_client(&options);
  char* values = read_values(&client, 0);
  upload(&client, values);
  void* workspace = nullptr;
  if (options.limit > 0) CUDA(cudaMalloc(&workspace, options.limit));
  const Found chosen = find(client, workspace, options.limit);
  CUDA(cudaFree(workspace));
  upload(&client, values);  // Find has overwritten the output
  CUDNN(cudnnSetConvolutionMathType(client.convolution, chosen.math));
  convolve_within(&client, chosen.algorithm, chosen.memory);
  report(chosen.algorithm, chosen.memory);
  write_output(&client, options.output);
  free(values);
  close_client(&client);
}
