#include "cudnn/legacy_call.hpp"

#include <iterator>

namespace mucudnn {
namespace {

// Asks the function of one pass. Its parameters A, B and C are the tensors' descriptors.
template <typename A, typename B, typename C, typename Performance>
cudnnStatus_t ask(cudnnStatus_t (*heuristics)(cudnnHandle_t, A, B, cudnnConvolutionDescriptor_t, C, int, int*,
                                              Performance*),
                  cudnnHandle_t handle, A a, B b, cudnnConvolutionDescriptor_t convolution, C c,
                  std::vector<LegacyNotes>& notes) {
  Performance results[2 * CUDNN_CONVOLUTION_FWD_ALGO_COUNT];
  int count = 0;
  const cudnnStatus_t status =
      heuristics(handle, a, b, convolution, c, static_cast<int>(std::size(results)), &count, results);
  for (int i = 0; i < count && status == CUDNN_STATUS_SUCCESS; ++i) {
    notes.push_back({static_cast<unsigned>(results[i].algo), results[i].determinism == CUDNN_DETERMINISTIC,
                     results[i].mathType});
  }
  return status;
}

}  // namespace

cudnnStatus_t execute(const Library& library, const LegacyCall& call) {
  const LegacyDescriptors& d = call.descriptors;
  char* const workspace = call.workspace.data;
  const std::size_t size = call.workspace.size;
  switch (call.pass) {
    case Pass::forward: {
      const auto algorithm = static_cast<cudnnConvolutionFwdAlgo_t>(call.algorithm);
      if (call.fusion) {
        const Fusion& f = *call.fusion;
        return library.cudnnConvolutionBiasActivationForward(
            call.handle, call.alpha, d.x, call.x, d.w, call.w, d.convolution, algorithm, workspace, size,
            call.beta, call.z_descriptor, f.z, f.bias_descriptor, f.bias, f.activation, d.y, call.y);
      }
      return library.cudnnConvolutionForward(call.handle, call.alpha, d.x, call.x, d.w, call.w, d.convolution,
                                             algorithm, workspace, size, call.beta, d.y, call.y);
    }
    case Pass::backward_data:
      return library.cudnnConvolutionBackwardData(call.handle, call.alpha, d.w, call.w, d.y, call.y,
                                                  d.convolution,
                                                  static_cast<cudnnConvolutionBwdDataAlgo_t>(call.algorithm),
                                                  workspace, size, call.beta, d.x, call.x);
    case Pass::backward_filter:
      break;
  }
  return library.cudnnConvolutionBackwardFilter(
      call.handle, call.alpha, d.x, call.x, d.y, call.y, d.convolution,
      static_cast<cudnnConvolutionBwdFilterAlgo_t>(call.algorithm), workspace, size, call.beta, d.w, call.w);
}

cudnnStatus_t get_workspace_size(const Library& library, cudnnHandle_t handle, Pass pass,
                                 const LegacyDescriptors& d, unsigned algorithm, std::size_t& size) {
  switch (pass) {
    case Pass::forward:
      return library.cudnnGetConvolutionForwardWorkspaceSize(
          handle, d.x, d.w, d.convolution, d.y, static_cast<cudnnConvolutionFwdAlgo_t>(algorithm), &size);
    case Pass::backward_data:
      return library.cudnnGetConvolutionBackwardDataWorkspaceSize(
          handle, d.w, d.y, d.convolution, d.x, static_cast<cudnnConvolutionBwdDataAlgo_t>(algorithm), &size);
    case Pass::backward_filter:
      break;
  }
  return library.cudnnGetConvolutionBackwardFilterWorkspaceSize(
      handle, d.x, d.y, d.convolution, d.w, static_cast<cudnnConvolutionBwdFilterAlgo_t>(algorithm), &size);
}

cudnnStatus_t get_notes(const Library& library, cudnnHandle_t handle, Pass pass, const LegacyDescriptors& d,
                        std::vector<LegacyNotes>& notes) {
  switch (pass) {
    case Pass::forward:
      return ask(library.cudnnGetConvolutionForwardAlgorithm_v7, handle, d.x, d.w, d.convolution, d.y, notes);
    case Pass::backward_data:
      return ask(library.cudnnGetConvolutionBackwardDataAlgorithm_v7, handle, d.w, d.y, d.convolution, d.x,
                 notes);
    case Pass::backward_filter:
      break;
  }
  return ask(library.cudnnGetConvolutionBackwardFilterAlgorithm_v7, handle, d.x, d.y, d.convolution, d.w,
             notes);
}

}  // namespace mucudnn
