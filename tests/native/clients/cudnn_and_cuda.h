/* Includes the headers of cuDNN and of the CUDA runtime. On a machine without them it declares the functions
 * that these clients call, with the values and layouts that NVIDIA documents. */
#ifndef CUDNN_AND_CUDA_H
#define CUDNN_AND_CUDA_H

#include <stddef.h>

#if __has_include(<cudnn.h>) && __has_include(<cuda_runtime.h>)
#include <cuda_runtime.h>
#include <cudnn.h>
#else

#ifdef __cplusplus
extern "C" {
#endif

typedef int cudaError_t;
typedef struct CUstream_st* cudaStream_t;
enum { cudaSuccess = 0 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
cudaError_t cudaMalloc(void**, size_t);
cudaError_t cudaFree(void*);
cudaError_t cudaMemcpy(void*, const void*, size_t, enum cudaMemcpyKind);
cudaError_t cudaMemcpyAsync(void*, const void*, size_t, enum cudaMemcpyKind, cudaStream_t);
cudaError_t cudaStreamCreate(cudaStream_t*);
cudaError_t cudaStreamDestroy(cudaStream_t);
cudaError_t cudaStreamSynchronize(cudaStream_t);
const char* cudaGetErrorString(cudaError_t);

typedef int cudnnStatus_t;
typedef struct cudnnContext* cudnnHandle_t;
typedef struct cudnnTensorStruct* cudnnTensorDescriptor_t;
typedef struct cudnnFilterStruct* cudnnFilterDescriptor_t;
typedef struct cudnnConvolutionStruct* cudnnConvolutionDescriptor_t;
typedef struct cudnnActivationStruct* cudnnActivationDescriptor_t;
enum { CUDNN_STATUS_SUCCESS = 0 };
typedef enum {
  CUDNN_DATA_FLOAT = 0,
  CUDNN_DATA_DOUBLE = 1,
  CUDNN_DATA_HALF = 2,
  CUDNN_DATA_BFLOAT16 = 9
} cudnnDataType_t;
typedef enum { CUDNN_TENSOR_NCHW = 0, CUDNN_TENSOR_NHWC = 1 } cudnnTensorFormat_t;
typedef enum { CUDNN_CONVOLUTION = 0, CUDNN_CROSS_CORRELATION = 1 } cudnnConvolutionMode_t;
typedef enum { CUDNN_NOT_PROPAGATE_NAN = 0 } cudnnNanPropagation_t;
typedef enum { CUDNN_ACTIVATION_RELU = 1, CUDNN_ACTIVATION_IDENTITY = 5 } cudnnActivationMode_t;
typedef int cudnnMathType_t;
typedef int cudnnConvolutionFwdAlgo_t;
typedef int cudnnConvolutionBwdDataAlgo_t;
typedef int cudnnConvolutionBwdFilterAlgo_t;
typedef struct {
  int algo;
  cudnnStatus_t status;
  float time;
  size_t memory;
  int determinism;
  cudnnMathType_t mathType;
  int reserved[3];
} cudnnConvolutionFwdAlgoPerf_t, cudnnConvolutionBwdDataAlgoPerf_t, cudnnConvolutionBwdFilterAlgoPerf_t;

const char* cudnnGetErrorString(cudnnStatus_t);
cudnnStatus_t cudnnCreate(cudnnHandle_t*);
cudnnStatus_t cudnnDestroy(cudnnHandle_t);
cudnnStatus_t cudnnSetStream(cudnnHandle_t, cudaStream_t);
cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t*);
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t);
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t, cudnnTensorFormat_t, cudnnDataType_t, int,
                                         int, int, int);
cudnnStatus_t cudnnSetTensorNdDescriptorEx(cudnnTensorDescriptor_t, cudnnTensorFormat_t, cudnnDataType_t, int,
                                           const int*);
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t*);
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t);
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t, cudnnDataType_t, cudnnTensorFormat_t, int,
                                         int, int, int);
cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t, cudnnDataType_t, cudnnTensorFormat_t, int,
                                         const int*);
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t*);
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t);
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t, int, int, int, int, int, int,
                                              cudnnConvolutionMode_t, cudnnDataType_t);
cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t, int, const int*, const int*,
                                              const int*, cudnnConvolutionMode_t, cudnnDataType_t);
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t, int);
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t, cudnnMathType_t);
cudnnStatus_t cudnnGetConvolutionNdForwardOutputDim(cudnnConvolutionDescriptor_t, cudnnTensorDescriptor_t,
                                                    cudnnFilterDescriptor_t, int, int*);
cudnnStatus_t cudnnCreateActivationDescriptor(cudnnActivationDescriptor_t*);
cudnnStatus_t cudnnDestroyActivationDescriptor(cudnnActivationDescriptor_t);
cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t, cudnnActivationMode_t,
                                           cudnnNanPropagation_t, double);

/* The functions of each pass: number of algorithms, algorithms in expected order, workspace. */
#define PASS(Name, Algorithm, Perf, First, Second, Third)                                   \
  cudnnStatus_t cudnnGetConvolution##Name##AlgorithmMaxCount(cudnnHandle_t, int*);          \
  cudnnStatus_t cudnnGetConvolution##Name##Algorithm_v7(                                    \
      cudnnHandle_t, First, Second, cudnnConvolutionDescriptor_t, Third, int, int*, Perf*); \
  cudnnStatus_t cudnnGetConvolution##Name##WorkspaceSize(                                   \
      cudnnHandle_t, First, Second, cudnnConvolutionDescriptor_t, Third, Algorithm, size_t*)
PASS(Forward, cudnnConvolutionFwdAlgo_t, cudnnConvolutionFwdAlgoPerf_t, cudnnTensorDescriptor_t,
     cudnnFilterDescriptor_t, cudnnTensorDescriptor_t);
PASS(BackwardData, cudnnConvolutionBwdDataAlgo_t, cudnnConvolutionBwdDataAlgoPerf_t, cudnnFilterDescriptor_t,
     cudnnTensorDescriptor_t, cudnnTensorDescriptor_t);
PASS(BackwardFilter, cudnnConvolutionBwdFilterAlgo_t, cudnnConvolutionBwdFilterAlgoPerf_t,
     cudnnTensorDescriptor_t, cudnnTensorDescriptor_t, cudnnFilterDescriptor_t);
#undef PASS

cudnnStatus_t cudnnFindConvolutionForwardAlgorithmEx(cudnnHandle_t, cudnnTensorDescriptor_t, const void*,
                                                     cudnnFilterDescriptor_t, const void*,
                                                     cudnnConvolutionDescriptor_t, cudnnTensorDescriptor_t,
                                                     void*, int, int*, cudnnConvolutionFwdAlgoPerf_t*, void*,
                                                     size_t);
cudnnStatus_t cudnnFindConvolutionBackwardDataAlgorithmEx(cudnnHandle_t, cudnnFilterDescriptor_t, const void*,
                                                          cudnnTensorDescriptor_t, const void*,
                                                          cudnnConvolutionDescriptor_t,
                                                          cudnnTensorDescriptor_t, void*, int, int*,
                                                          cudnnConvolutionBwdDataAlgoPerf_t*, void*, size_t);
cudnnStatus_t cudnnFindConvolutionBackwardFilterAlgorithmEx(cudnnHandle_t, cudnnTensorDescriptor_t,
                                                            const void*, cudnnTensorDescriptor_t, const void*,
                                                            cudnnConvolutionDescriptor_t,
                                                            cudnnFilterDescriptor_t, void*, int, int*,
                                                            cudnnConvolutionBwdFilterAlgoPerf_t*, void*,
                                                            size_t);
cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t, const void*, cudnnTensorDescriptor_t, const void*,
                                      cudnnFilterDescriptor_t, const void*, cudnnConvolutionDescriptor_t,
                                      cudnnConvolutionFwdAlgo_t, void*, size_t, const void*,
                                      cudnnTensorDescriptor_t, void*);
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t, const void*, cudnnFilterDescriptor_t, const void*,
                                           cudnnTensorDescriptor_t, const void*, cudnnConvolutionDescriptor_t,
                                           cudnnConvolutionBwdDataAlgo_t, void*, size_t, const void*,
                                           cudnnTensorDescriptor_t, void*);
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t, const void*, cudnnTensorDescriptor_t, const void*,
                                             cudnnTensorDescriptor_t, const void*,
                                             cudnnConvolutionDescriptor_t, cudnnConvolutionBwdFilterAlgo_t,
                                             void*, size_t, const void*, cudnnFilterDescriptor_t, void*);
cudnnStatus_t cudnnConvolutionBiasActivationForward(cudnnHandle_t, const void*, cudnnTensorDescriptor_t,
                                                    const void*, cudnnFilterDescriptor_t, const void*,
                                                    cudnnConvolutionDescriptor_t, cudnnConvolutionFwdAlgo_t,
                                                    void*, size_t, const void*, cudnnTensorDescriptor_t,
                                                    const void*, cudnnTensorDescriptor_t, const void*,
                                                    cudnnActivationDescriptor_t, cudnnTensorDescriptor_t,
                                                    void*);

#ifdef __cplusplus
}
#endif

#endif
#endif
