#include "cudnn/legacy_call.hpp"

namespace mucudnn {

cudnnStatus_t execute(const Library& library, const LegacyCall& call) {
  const LegacyDescriptors& d = call.descriptors;
  const Tensors& t = call.tensors;
  char* const workspace = call.workspace.data;
  const std::size_t size = call.workspace.size;
  switch (call.pass) {
    case Pass::forward: {
      const auto algorithm = static_cast<cudnnConvolutionFwdAlgo_t>(call.algorithm);
      if (call.fusion) {
        const Fusion& f = *call.fusion;
        return library.cudnnConvolutionBiasActivationForward(
            call.handle, call.alpha, d.x, t.x, d.w, t.w, d.convolution, algorithm, workspace, size, call.beta,
            call.z_descriptor, f.z, f.bias_descriptor, f.bias, f.activation, d.y, t.y);
      }
      return library.cudnnConvolutionForward(call.handle, call.alpha, d.x, t.x, d.w, t.w, d.convolution,
                                             algorithm, workspace, size, call.beta, d.y, t.y);
    }
    case Pass::backward_data:
      return library.cudnnConvolutionBackwardData(call.handle, call.alpha, d.w, t.w, d.y, t.y, d.convolution,
                                                  static_cast<cudnnConvolutionBwdDataAlgo_t>(call.algorithm),
                                                  workspace, size, call.beta, d.x, t.x);
    case Pass::backward_filter:
      break;
  }
  return library.cudnnConvolutionBackwardFilter(call.handle, call.alpha, d.x, t.x, d.y, t.y, d.convolution,
                                                static_cast<cudnnConvolutionBwdFilterAlgo_t>(call.algorithm),
                                                workspace, size, call.beta, d.w, t.w);
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

}  // namespace mucudnn
