// Computes y = relu(alpha * convolution + beta * z + bias) in one call. Reads x, w, z and bias, in this
// order.
#include "caffe_habit.h"

int main(int count, char** arguments) {
  const Options options = read_options(count, arguments);
  Client client = open_client(&options);
  int dims[kMostDims] = {1, options.k, 1, 1, 1};
  const size_t bias_size = bytes_of(&options, dims);
  char* values = read_values(&client, bias_size);
  upload(&client, values);
  void *z = client.y, *bias, *workspace = nullptr;
  CUDA(cudaMalloc(&bias, bias_size));
  CUDA(cudaMemcpy(bias, values + client.x_size + client.w_size + client.y_size, bias_size,
                  cudaMemcpyHostToDevice));
  CUDA(cudaMalloc(&client.y, client.y_size));
  cudnnTensorDescriptor_t bias_descriptor;
  cudnnActivationDescriptor_t activation;
  CUDNN(cudnnCreateTensorDescriptor(&bias_descriptor));
  set_tensor(bias_descriptor, &options, dims);
  CUDNN(cudnnCreateActivationDescriptor(&activation));
  CUDNN(cudnnSetActivationDescriptor(activation, CUDNN_ACTIVATION_RELU, CUDNN_NOT_PROPAGATE_NAN, 0));

  const Selection selection = select(client, options.limit);
  const auto algorithm = static_cast<cudnnConvolutionFwdAlgo_t>(selection.algorithm);
  if (selection.workspace > 0) CUDA(cudaMalloc(&workspace, selection.workspace));
  const void* alpha = client.is_double ? static_cast<const void*>(&client.alpha) : &client.alpha_float;
  const void* beta = client.is_double ? static_cast<const void*>(&client.beta) : &client.beta_float;
  CUDNN(cudnnConvolutionBiasActivationForward(
      client.handle, alpha, client.x_descriptor, client.x, client.w_descriptor, client.w, client.convolution,
      algorithm, workspace, selection.workspace, beta, client.y_descriptor, z, bias_descriptor, bias,
      activation, client.y_descriptor, client.y));
  report(selection.algorithm, selection.workspace);
  write_output(&client, options.output);

  CUDA(cudaFree(workspace));
  CUDA(cudaFree(bias));
  CUDA(cudaFree(z));
  CUDNN(cudnnDestroyTensorDescriptor(bias_descriptor));
  CUDNN(cudnnDestroyActivationDescriptor(activation));
  free(values);
  close_client(&client);
}
