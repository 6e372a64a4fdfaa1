/* The code that all clients share: descriptors, memory, and the reading and writing of values. */
#ifndef CLIENT_H
#define CLIENT_H

#include "options.h"

typedef struct {
  cudnnHandle_t handle;
  cudaStream_t stream;
  cudnnTensorDescriptor_t x_descriptor, y_descriptor;
  cudnnFilterDescriptor_t w_descriptor;
  cudnnConvolutionDescriptor_t convolution;
  size_t x_size, w_size, y_size; /* bytes */
  void *x, *w, *y;               /* on the device */
  double alpha, beta;
  float alpha_float, beta_float;
  int is_double;
  Pass pass;
} Client;

static inline void set_tensor(cudnnTensorDescriptor_t descriptor, const Options* o, const int* dims) {
  if (o->axes == 2) {
    CUDNN(cudnnSetTensor4dDescriptor(descriptor, o->layout, o->type, dims[0], dims[1], dims[2], dims[3]));
  } else {
    CUDNN(cudnnSetTensorNdDescriptorEx(descriptor, o->layout, o->type, o->axes + 2, dims));
  }
}

/* Returns the bytes of a tensor with these dimensions in the type of the options. */
static inline size_t bytes_of(const Options* o, const int* dims) {
  size_t size = o->type == CUDNN_DATA_DOUBLE ? 8 : o->type == CUDNN_DATA_FLOAT ? 4 : 2;
  for (int i = 0; i < o->axes + 2; ++i) size *= (size_t)dims[i];
  return size;
}

/* Creates a handle with a stream of its own, descriptors and memory. The memory has no values yet. */
static inline Client open_client(const Options* o) {
  Client client;
  memset(&client, 0, sizeof client);
  int x[kMostDims] = {o->n, o->c}, w[kMostDims] = {o->k, o->c / o->groups}, y[kMostDims];
  for (int i = 0; i < o->axes; ++i) {
    x[i + 2] = o->input[i];
    w[i + 2] = o->kernel[i];
  }
  client.is_double = o->type == CUDNN_DATA_DOUBLE;
  client.pass = o->pass;
  client.alpha = o->alpha;
  client.beta = o->beta;
  client.alpha_float = (float)o->alpha;
  client.beta_float = (float)o->beta;
  CUDNN(cudnnCreate(&client.handle));
  CUDA(cudaStreamCreate(&client.stream));
  CUDNN(cudnnSetStream(client.handle, client.stream));
  CUDNN(cudnnCreateTensorDescriptor(&client.x_descriptor));
  CUDNN(cudnnCreateTensorDescriptor(&client.y_descriptor));
  CUDNN(cudnnCreateFilterDescriptor(&client.w_descriptor));
  CUDNN(cudnnCreateConvolutionDescriptor(&client.convolution));
  const cudnnDataType_t compute = client.is_double ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
  if (o->axes == 2) {
    CUDNN(cudnnSetFilter4dDescriptor(client.w_descriptor, o->type, o->layout, w[0], w[1], w[2], w[3]));
    CUDNN(cudnnSetConvolution2dDescriptor(client.convolution, o->pad[0], o->pad[1], o->stride[0],
                                          o->stride[1], o->dilation[0], o->dilation[1],
                                          CUDNN_CROSS_CORRELATION, compute));
  } else {
    CUDNN(cudnnSetFilterNdDescriptor(client.w_descriptor, o->type, o->layout, o->axes + 2, w));
    CUDNN(cudnnSetConvolutionNdDescriptor(client.convolution, o->axes, o->pad, o->stride, o->dilation,
                                          CUDNN_CROSS_CORRELATION, compute));
  }
  CUDNN(cudnnSetConvolutionGroupCount(client.convolution, o->groups));
  set_tensor(client.x_descriptor, o, x);
  CUDNN(cudnnGetConvolutionNdForwardOutputDim(client.convolution, client.x_descriptor, client.w_descriptor,
                                              o->axes + 2, y));
  set_tensor(client.y_descriptor, o, y);
  client.x_size = bytes_of(o, x);
  client.w_size = bytes_of(o, w);
  client.y_size = bytes_of(o, y);
  CUDA(cudaMalloc(&client.x, client.x_size));
  CUDA(cudaMalloc(&client.w, client.w_size));
  CUDA(cudaMalloc(&client.y, client.y_size));
  return client;
}

static inline void close_client(const Client* client) {
  CUDA(cudaFree(client->x));
  CUDA(cudaFree(client->w));
  CUDA(cudaFree(client->y));
  CUDNN(cudnnDestroyTensorDescriptor(client->x_descriptor));
  CUDNN(cudnnDestroyTensorDescriptor(client->y_descriptor));
  CUDNN(cudnnDestroyFilterDescriptor(client->w_descriptor));
  CUDNN(cudnnDestroyConvolutionDescriptor(client->convolution));
  CUDNN(cudnnDestroy(client->handle));
  CUDA(cudaStreamDestroy(client->stream));
}

/* Reads x, w and y and `more` bytes from stdin into one block. The caller frees it. */
static inline char* read_values(const Client* client, size_t more) {
  const size_t size = client->x_size + client->w_size + client->y_size + more;
  char* values = (char*)malloc(size);
  if (values == NULL || fread(values, 1, size, stdin) != size) fail("stdin", "has too few values");
  return values;
}

static inline void upload(const Client* client, const char* values) {
  CUDA(cudaMemcpyAsync(client->x, values, client->x_size, cudaMemcpyHostToDevice, client->stream));
  values += client->x_size;
  CUDA(cudaMemcpyAsync(client->w, values, client->w_size, cudaMemcpyHostToDevice, client->stream));
  values += client->w_size;
  CUDA(cudaMemcpyAsync(client->y, values, client->y_size, cudaMemcpyHostToDevice, client->stream));
  CUDA(cudaStreamSynchronize(client->stream));
}

/* Appends the output of the pass to a file. */
static inline void download(const Client* client, FILE* file) {
  void* const from[] = {client->y, client->x, client->w};
  const size_t sizes[] = {client->y_size, client->x_size, client->w_size};
  const size_t size = sizes[client->pass];
  void* values = malloc(size);
  if (values == NULL || file == NULL) fail("output", "cannot be written");
  CUDA(cudaStreamSynchronize(client->stream));
  CUDA(cudaMemcpy(values, from[client->pass], size, cudaMemcpyDeviceToHost));
  if (fwrite(values, 1, size, file) != size) fail("output", "cannot be written");
  free(values);
}

static inline void write_output(const Client* client, const char* path) {
  FILE* file = fopen(path, "wb");
  download(client, file);
  if (fclose(file) != 0) fail(path, "cannot be written");
}

/* Runs the convolution of the pass. */
static inline void convolve(const Client* c, int algorithm, void* workspace, size_t size) {
  const void* alpha = c->is_double ? (const void*)&c->alpha : &c->alpha_float;
  const void* beta = c->is_double ? (const void*)&c->beta : &c->beta_float;
  switch (c->pass) {
    case kForward:
      CUDNN(cudnnConvolutionForward(c->handle, alpha, c->x_descriptor, c->x, c->w_descriptor, c->w,
                                    c->convolution, (cudnnConvolutionFwdAlgo_t)algorithm, workspace, size,
                                    beta, c->y_descriptor, c->y));
      break;
    case kBackwardData:
      CUDNN(cudnnConvolutionBackwardData(c->handle, alpha, c->w_descriptor, c->w, c->y_descriptor, c->y,
                                         c->convolution, (cudnnConvolutionBwdDataAlgo_t)algorithm, workspace,
                                         size, beta, c->x_descriptor, c->x));
      break;
    case kBackwardFilter:
      CUDNN(cudnnConvolutionBackwardFilter(c->handle, alpha, c->x_descriptor, c->x, c->y_descriptor, c->y,
                                           c->convolution, (cudnnConvolutionBwdFilterAlgo_t)algorithm,
                                           workspace, size, beta, c->w_descriptor, c->w));
      break;
  }
}

/* Allocates a workspace of `size` bytes, convolves with it, and frees it. */
static inline void convolve_within(const Client* client, int algorithm, size_t size) {
  void* workspace = NULL;
  if (size > 0) CUDA(cudaMalloc(&workspace, size));
  convolve(client, algorithm, workspace, size);
  CUDA(cudaStreamSynchronize(client->stream));
  CUDA(cudaFree(workspace));
}

static inline void report(int algorithm, size_t workspace) {
  printf("algorithm %d workspace %zu\n", algorithm, workspace);
}

#endif
