/* The part of the cuDNN 9 C ABI that convolutions need, for C and C++. It replaces NVIDIA's header, so that a
 * build needs neither CUDA nor cuDNN. tests/native/test_header_agrees.py checks every declaration against
 * the real header.
 *
 * Tables of functions and names of values are X-macros, because code also iterates over them. */
#ifndef MUCUDNN_CUDNN_ABI_H
#define MUCUDNN_CUDNN_ABI_H

#include <stddef.h>

#define CUDNN_DIM_MAX 8

/* X(enumerator, value) */
#define MUCUDNN_CUDNN_STATUSES(X)                               \
  X(CUDNN_STATUS_SUCCESS, 0)                                    \
  X(CUDNN_STATUS_NOT_INITIALIZED, 1001)                         \
  X(CUDNN_STATUS_BAD_PARAM, 2000)                               \
  X(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, 2002)                  \
  X(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, 2003)            \
  X(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, 2004)                 \
  X(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, 2010)                \
  X(CUDNN_STATUS_NOT_SUPPORTED, 3000)                           \
  X(CUDNN_STATUS_NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API, 3013)     \
  X(CUDNN_STATUS_INTERNAL_ERROR, 4000)                          \
  X(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, 4003)   \
  X(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, 4004) \
  X(CUDNN_STATUS_EXECUTION_FAILED, 5000)

/* X(enumerator, value, name): plans and caches call the algorithm by the name. */
#define MUCUDNN_FORWARD_ALGORITHMS(X)                                             \
  X(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, 0, "IMPLICIT_GEMM")                 \
  X(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, 1, "IMPLICIT_PRECOMP_GEMM") \
  X(CUDNN_CONVOLUTION_FWD_ALGO_GEMM, 2, "GEMM")                                   \
  X(CUDNN_CONVOLUTION_FWD_ALGO_DIRECT, 3, "DIRECT")                               \
  X(CUDNN_CONVOLUTION_FWD_ALGO_FFT, 4, "FFT")                                     \
  X(CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING, 5, "FFT_TILING")                       \
  X(CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD, 6, "WINOGRAD")                           \
  X(CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED, 7, "WINOGRAD_NONFUSED")

#define MUCUDNN_BACKWARD_DATA_ALGORITHMS(X)                      \
  X(CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, 0, "ALGO_0")              \
  X(CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, 1, "ALGO_1")              \
  X(CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT, 2, "FFT")               \
  X(CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING, 3, "FFT_TILING") \
  X(CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD, 4, "WINOGRAD")     \
  X(CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED, 5, "WINOGRAD_NONFUSED")

#define MUCUDNN_BACKWARD_FILTER_ALGORITHMS(X)                                    \
  X(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, 0, "ALGO_0")                            \
  X(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, 1, "ALGO_1")                            \
  X(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT, 2, "FFT")                             \
  X(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3, 3, "ALGO_3")                            \
  X(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD, 4, "WINOGRAD")                   \
  X(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED, 5, "WINOGRAD_NONFUSED") \
  X(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING, 6, "FFT_TILING")

/* The parameters of the functions that every pass has. The inputs a and b and the output c are x, w or y. */
#define MUCUDNN_DESCRIPTOR_x cudnnTensorDescriptor_t x_descriptor
#define MUCUDNN_DESCRIPTOR_w cudnnFilterDescriptor_t w_descriptor
#define MUCUDNN_DESCRIPTOR_y cudnnTensorDescriptor_t y_descriptor

#define MUCUDNN_LIST_PARAMETERS(Pass, a, b, c)                                                     \
  (cudnnHandle_t handle, MUCUDNN_DESCRIPTOR_##a, MUCUDNN_DESCRIPTOR_##b,                           \
   cudnnConvolutionDescriptor_t convolution, MUCUDNN_DESCRIPTOR_##c, int requested, int* returned, \
   cudnnConvolution##Pass##AlgoPerf_t* results)

#define MUCUDNN_FIND_PARAMETERS(Pass, a, b, c)                                                              \
  (cudnnHandle_t handle, MUCUDNN_DESCRIPTOR_##a, const void* a, MUCUDNN_DESCRIPTOR_##b, const void* b,      \
   cudnnConvolutionDescriptor_t convolution, MUCUDNN_DESCRIPTOR_##c, void* c, int requested, int* returned, \
   cudnnConvolution##Pass##AlgoPerf_t* results, void* workspace, size_t workspace_size)

#define MUCUDNN_SIZE_PARAMETERS(Pass, a, b, c)                           \
  (cudnnHandle_t handle, MUCUDNN_DESCRIPTOR_##a, MUCUDNN_DESCRIPTOR_##b, \
   cudnnConvolutionDescriptor_t convolution, MUCUDNN_DESCRIPTOR_##c,     \
   cudnnConvolution##Pass##Algo_t algorithm, size_t* size)

#define MUCUDNN_RUN_PARAMETERS(Pass, a, b, c)                                                              \
  (cudnnHandle_t handle, const void* alpha, MUCUDNN_DESCRIPTOR_##a, const void* a, MUCUDNN_DESCRIPTOR_##b, \
   const void* b, cudnnConvolutionDescriptor_t convolution, cudnnConvolution##Pass##Algo_t algorithm,      \
   void* workspace, size_t workspace_size, const void* beta, MUCUDNN_DESCRIPTOR_##c, void* c)

/* X(result, function, parameters) */
#define MUCUDNN_CUDNN_FUNCTIONS(X)                                                                           \
  X(size_t, cudnnGetVersion, (void))                                                                         \
  X(size_t, cudnnGetCudartVersion, (void))                                                                   \
  X(const char*, cudnnGetErrorString, (cudnnStatus_t status))                                                \
  X(void, cudnnGetLastErrorString, (char* message, size_t size))                                             \
  X(cudnnStatus_t, cudnnGetProperty, (libraryPropertyType type, int* value))                                 \
  X(cudnnStatus_t, cudnnCreate, (cudnnHandle_t * handle))                                                    \
  X(cudnnStatus_t, cudnnDestroy, (cudnnHandle_t handle))                                                     \
  X(cudnnStatus_t, cudnnSetStream, (cudnnHandle_t handle, cudaStream_t stream))                              \
  X(cudnnStatus_t, cudnnGetStream, (cudnnHandle_t handle, cudaStream_t * stream))                            \
  X(cudnnStatus_t, cudnnCreateTensorDescriptor, (cudnnTensorDescriptor_t * tensor))                          \
  X(cudnnStatus_t, cudnnDestroyTensorDescriptor, (cudnnTensorDescriptor_t tensor))                           \
  X(cudnnStatus_t, cudnnSetTensor4dDescriptor,                                                               \
    (cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format, cudnnDataType_t type, int n, int c, int h,  \
     int w))                                                                                                 \
  X(cudnnStatus_t, cudnnSetTensor4dDescriptorEx,                                                             \
    (cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int n, int c, int h, int w, int n_stride,         \
     int c_stride, int h_stride, int w_stride))                                                              \
  X(cudnnStatus_t, cudnnGetTensor4dDescriptor,                                                               \
    (cudnnTensorDescriptor_t tensor, cudnnDataType_t * type, int* n, int* c, int* h, int* w, int* n_stride,  \
     int* c_stride, int* h_stride, int* w_stride))                                                           \
  X(cudnnStatus_t, cudnnSetTensorNdDescriptor,                                                               \
    (cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int dims, const int* sizes, const int* strides))  \
  X(cudnnStatus_t, cudnnSetTensorNdDescriptorEx,                                                             \
    (cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format, cudnnDataType_t type, int dims,             \
     const int* sizes))                                                                                      \
  X(cudnnStatus_t, cudnnGetTensorNdDescriptor,                                                               \
    (cudnnTensorDescriptor_t tensor, int requested, cudnnDataType_t* type, int* dims, int* sizes,            \
     int* strides))                                                                                          \
  X(cudnnStatus_t, cudnnGetTensorSizeInBytes, (cudnnTensorDescriptor_t tensor, size_t* size))                \
  X(cudnnStatus_t, cudnnCreateFilterDescriptor, (cudnnFilterDescriptor_t * filter))                          \
  X(cudnnStatus_t, cudnnDestroyFilterDescriptor, (cudnnFilterDescriptor_t filter))                           \
  X(cudnnStatus_t, cudnnSetFilter4dDescriptor,                                                               \
    (cudnnFilterDescriptor_t filter, cudnnDataType_t type, cudnnTensorFormat_t format, int k, int c, int h,  \
     int w))                                                                                                 \
  X(cudnnStatus_t, cudnnGetFilter4dDescriptor,                                                               \
    (cudnnFilterDescriptor_t filter, cudnnDataType_t * type, cudnnTensorFormat_t * format, int* k, int* c,   \
     int* h, int* w))                                                                                        \
  X(cudnnStatus_t, cudnnSetFilterNdDescriptor,                                                               \
    (cudnnFilterDescriptor_t filter, cudnnDataType_t type, cudnnTensorFormat_t format, int dims,             \
     const int* sizes))                                                                                      \
  X(cudnnStatus_t, cudnnGetFilterNdDescriptor,                                                               \
    (cudnnFilterDescriptor_t filter, int requested, cudnnDataType_t* type, cudnnTensorFormat_t* format,      \
     int* dims, int* sizes))                                                                                 \
  X(cudnnStatus_t, cudnnGetFilterSizeInBytes, (cudnnFilterDescriptor_t filter, size_t* size))                \
  X(cudnnStatus_t, cudnnCreateConvolutionDescriptor, (cudnnConvolutionDescriptor_t * convolution))           \
  X(cudnnStatus_t, cudnnDestroyConvolutionDescriptor, (cudnnConvolutionDescriptor_t convolution))            \
  X(cudnnStatus_t, cudnnSetConvolutionMathType,                                                              \
    (cudnnConvolutionDescriptor_t convolution, cudnnMathType_t math))                                        \
  X(cudnnStatus_t, cudnnGetConvolutionMathType,                                                              \
    (cudnnConvolutionDescriptor_t convolution, cudnnMathType_t * math))                                      \
  X(cudnnStatus_t, cudnnSetConvolutionGroupCount, (cudnnConvolutionDescriptor_t convolution, int groups))    \
  X(cudnnStatus_t, cudnnGetConvolutionGroupCount, (cudnnConvolutionDescriptor_t convolution, int* groups))   \
  X(cudnnStatus_t, cudnnSetConvolutionReorderType,                                                           \
    (cudnnConvolutionDescriptor_t convolution, cudnnReorderType_t reorder))                                  \
  X(cudnnStatus_t, cudnnGetConvolutionReorderType,                                                           \
    (cudnnConvolutionDescriptor_t convolution, cudnnReorderType_t * reorder))                                \
  X(cudnnStatus_t, cudnnSetConvolution2dDescriptor,                                                          \
    (cudnnConvolutionDescriptor_t convolution, int pad_h, int pad_w, int stride_h, int stride_w,             \
     int dilation_h, int dilation_w, cudnnConvolutionMode_t mode, cudnnDataType_t compute_type))             \
  X(cudnnStatus_t, cudnnGetConvolution2dDescriptor,                                                          \
    (cudnnConvolutionDescriptor_t convolution, int* pad_h, int* pad_w, int* stride_h, int* stride_w,         \
     int* dilation_h, int* dilation_w, cudnnConvolutionMode_t* mode, cudnnDataType_t* compute_type))         \
  X(cudnnStatus_t, cudnnSetConvolutionNdDescriptor,                                                          \
    (cudnnConvolutionDescriptor_t convolution, int dims, const int* paddings, const int* strides,            \
     const int* dilations, cudnnConvolutionMode_t mode, cudnnDataType_t compute_type))                       \
  X(cudnnStatus_t, cudnnGetConvolutionNdDescriptor,                                                          \
    (cudnnConvolutionDescriptor_t convolution, int requested, int* dims, int* paddings, int* strides,        \
     int* dilations, cudnnConvolutionMode_t* mode, cudnnDataType_t* compute_type))                           \
  X(cudnnStatus_t, cudnnGetConvolution2dForwardOutputDim,                                                    \
    (cudnnConvolutionDescriptor_t convolution, cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w, int* n, \
     int* c, int* h, int* width))                                                                            \
  X(cudnnStatus_t, cudnnGetConvolutionNdForwardOutputDim,                                                    \
    (cudnnConvolutionDescriptor_t convolution, cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,         \
     int dims, int* sizes))                                                                                  \
  X(cudnnStatus_t, cudnnCreateActivationDescriptor, (cudnnActivationDescriptor_t * activation))              \
  X(cudnnStatus_t, cudnnDestroyActivationDescriptor, (cudnnActivationDescriptor_t activation))               \
  X(cudnnStatus_t, cudnnSetActivationDescriptor,                                                             \
    (cudnnActivationDescriptor_t activation, cudnnActivationMode_t mode, cudnnNanPropagation_t relu_nan,     \
     double coefficient))                                                                                    \
  X(cudnnStatus_t, cudnnGetActivationDescriptor,                                                             \
    (cudnnActivationDescriptor_t activation, cudnnActivationMode_t * mode, cudnnNanPropagation_t * relu_nan, \
     double* coefficient))                                                                                   \
  X(cudnnStatus_t, cudnnSetActivationDescriptorSwishBeta,                                                    \
    (cudnnActivationDescriptor_t activation, double beta))                                                   \
  X(cudnnStatus_t, cudnnGetActivationDescriptorSwishBeta,                                                    \
    (cudnnActivationDescriptor_t activation, double* beta))                                                  \
  X(cudnnStatus_t, cudnnGetConvolutionForwardAlgorithmMaxCount, (cudnnHandle_t handle, int* count))          \
  X(cudnnStatus_t, cudnnGetConvolutionBackwardDataAlgorithmMaxCount, (cudnnHandle_t handle, int* count))     \
  X(cudnnStatus_t, cudnnGetConvolutionBackwardFilterAlgorithmMaxCount, (cudnnHandle_t handle, int* count))   \
  X(cudnnStatus_t, cudnnGetConvolutionForwardAlgorithm_v7, MUCUDNN_LIST_PARAMETERS(Fwd, x, w, y))            \
  X(cudnnStatus_t, cudnnGetConvolutionBackwardDataAlgorithm_v7, MUCUDNN_LIST_PARAMETERS(BwdData, w, y, x))   \
  X(cudnnStatus_t, cudnnGetConvolutionBackwardFilterAlgorithm_v7,                                            \
    MUCUDNN_LIST_PARAMETERS(BwdFilter, x, y, w))                                                             \
  X(cudnnStatus_t, cudnnFindConvolutionForwardAlgorithm, MUCUDNN_LIST_PARAMETERS(Fwd, x, w, y))              \
  X(cudnnStatus_t, cudnnFindConvolutionBackwardDataAlgorithm, MUCUDNN_LIST_PARAMETERS(BwdData, w, y, x))     \
  X(cudnnStatus_t, cudnnFindConvolutionBackwardFilterAlgorithm, MUCUDNN_LIST_PARAMETERS(BwdFilter, x, y, w)) \
  X(cudnnStatus_t, cudnnFindConvolutionForwardAlgorithmEx, MUCUDNN_FIND_PARAMETERS(Fwd, x, w, y))            \
  X(cudnnStatus_t, cudnnFindConvolutionBackwardDataAlgorithmEx, MUCUDNN_FIND_PARAMETERS(BwdData, w, y, x))   \
  X(cudnnStatus_t, cudnnFindConvolutionBackwardFilterAlgorithmEx,                                            \
    MUCUDNN_FIND_PARAMETERS(BwdFilter, x, y, w))                                                             \
  X(cudnnStatus_t, cudnnGetConvolutionForwardWorkspaceSize, MUCUDNN_SIZE_PARAMETERS(Fwd, x, w, y))           \
  X(cudnnStatus_t, cudnnGetConvolutionBackwardDataWorkspaceSize, MUCUDNN_SIZE_PARAMETERS(BwdData, w, y, x))  \
  X(cudnnStatus_t, cudnnGetConvolutionBackwardFilterWorkspaceSize,                                           \
    MUCUDNN_SIZE_PARAMETERS(BwdFilter, x, y, w))                                                             \
  X(cudnnStatus_t, cudnnConvolutionForward, MUCUDNN_RUN_PARAMETERS(Fwd, x, w, y))                            \
  X(cudnnStatus_t, cudnnConvolutionBackwardData, MUCUDNN_RUN_PARAMETERS(BwdData, w, y, x))                   \
  X(cudnnStatus_t, cudnnConvolutionBackwardFilter, MUCUDNN_RUN_PARAMETERS(BwdFilter, x, y, w))               \
  X(cudnnStatus_t, cudnnConvolutionBiasActivationForward,                                                    \
    (cudnnHandle_t handle, const void* alpha1, cudnnTensorDescriptor_t x_descriptor, const void* x,          \
     cudnnFilterDescriptor_t w_descriptor, const void* w, cudnnConvolutionDescriptor_t convolution,          \
     cudnnConvolutionFwdAlgo_t algorithm, void* workspace, size_t workspace_size, const void* alpha2,        \
     cudnnTensorDescriptor_t z_descriptor, const void* z, cudnnTensorDescriptor_t bias_descriptor,           \
     const void* bias, cudnnActivationDescriptor_t activation, cudnnTensorDescriptor_t y_descriptor,         \
     void* y))                                                                                               \
  X(cudnnStatus_t, cudnnConvolutionBackwardBias,                                                             \
    (cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t dy_descriptor, const void* dy,         \
     const void* beta, cudnnTensorDescriptor_t db_descriptor, void* db))                                     \
  X(cudnnStatus_t, cudnnAddTensor,                                                                           \
    (cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t a_descriptor, const void* a,           \
     const void* beta, cudnnTensorDescriptor_t c_descriptor, void* c))

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st* cudaStream_t;
typedef struct cudnnContext* cudnnHandle_t;
typedef struct cudnnTensorStruct* cudnnTensorDescriptor_t;
typedef struct cudnnFilterStruct* cudnnFilterDescriptor_t;
typedef struct cudnnConvolutionStruct* cudnnConvolutionDescriptor_t;
typedef struct cudnnActivationStruct* cudnnActivationDescriptor_t;

/* A program may pass any number for an enumerator. In C++ only a fixed underlying type makes every number
 * valid. */
#ifdef __cplusplus
#define MUCUDNN_ANY_NUMBER : unsigned int
#else
#define MUCUDNN_ANY_NUMBER
#endif

typedef enum libraryPropertyType_t MUCUDNN_ANY_NUMBER {
  MAJOR_VERSION,
  MINOR_VERSION,
  PATCH_LEVEL
} libraryPropertyType;

#define MUCUDNN_STATUS(enumerator, value) enumerator = value,
#define MUCUDNN_ALGORITHM(enumerator, value, name) enumerator = value,

typedef enum MUCUDNN_ANY_NUMBER {
  CUDNN_STATUS_ALLOC_FAILED = 4003, /* another name of the host allocation failure */
  MUCUDNN_CUDNN_STATUSES(MUCUDNN_STATUS)
} cudnnStatus_t;

typedef enum MUCUDNN_ANY_NUMBER {
  CUDNN_CONVOLUTION_FWD_ALGO_COUNT = 8,
  MUCUDNN_FORWARD_ALGORITHMS(MUCUDNN_ALGORITHM)
} cudnnConvolutionFwdAlgo_t;

typedef enum MUCUDNN_ANY_NUMBER {
  CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT = 6,
  MUCUDNN_BACKWARD_DATA_ALGORITHMS(MUCUDNN_ALGORITHM)
} cudnnConvolutionBwdDataAlgo_t;

typedef enum MUCUDNN_ANY_NUMBER {
  CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT = 7,
  MUCUDNN_BACKWARD_FILTER_ALGORITHMS(MUCUDNN_ALGORITHM)
} cudnnConvolutionBwdFilterAlgo_t;

#undef MUCUDNN_STATUS
#undef MUCUDNN_ALGORITHM

typedef enum MUCUDNN_ANY_NUMBER {
  CUDNN_DATA_FLOAT = 0,
  CUDNN_DATA_DOUBLE = 1,
  CUDNN_DATA_HALF = 2,
  CUDNN_DATA_INT8 = 3,
  CUDNN_DATA_INT32 = 4,
  CUDNN_DATA_BFLOAT16 = 9
} cudnnDataType_t;

typedef enum MUCUDNN_ANY_NUMBER {
  CUDNN_DEFAULT_MATH = 0,
  CUDNN_TENSOR_OP_MATH = 1,
  CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION = 2,
  CUDNN_FMA_MATH = 3
} cudnnMathType_t;

typedef enum MUCUDNN_ANY_NUMBER {
  CUDNN_TENSOR_NCHW = 0,
  CUDNN_TENSOR_NHWC = 1,
  CUDNN_TENSOR_NCHW_VECT_C = 2
} cudnnTensorFormat_t;

typedef enum MUCUDNN_ANY_NUMBER { CUDNN_CONVOLUTION = 0, CUDNN_CROSS_CORRELATION = 1 } cudnnConvolutionMode_t;
typedef enum MUCUDNN_ANY_NUMBER { CUDNN_DEFAULT_REORDER = 0, CUDNN_NO_REORDER = 1 } cudnnReorderType_t;
typedef enum MUCUDNN_ANY_NUMBER { CUDNN_NON_DETERMINISTIC = 0, CUDNN_DETERMINISTIC = 1 } cudnnDeterminism_t;
typedef enum MUCUDNN_ANY_NUMBER {
  CUDNN_NOT_PROPAGATE_NAN = 0,
  CUDNN_PROPAGATE_NAN = 1
} cudnnNanPropagation_t;

typedef enum MUCUDNN_ANY_NUMBER {
  CUDNN_ACTIVATION_SIGMOID = 0,
  CUDNN_ACTIVATION_RELU = 1,
  CUDNN_ACTIVATION_TANH = 2,
  CUDNN_ACTIVATION_CLIPPED_RELU = 3,
  CUDNN_ACTIVATION_ELU = 4,
  CUDNN_ACTIVATION_IDENTITY = 5,
  CUDNN_ACTIVATION_SWISH = 6
} cudnnActivationMode_t;

/* Time in milliseconds, -1 if the algorithm did not run; memory in bytes. */
typedef struct cudnnConvolutionFwdAlgoPerfStruct {
  cudnnConvolutionFwdAlgo_t algo;
  cudnnStatus_t status;
  float time;
  size_t memory;
  cudnnDeterminism_t determinism;
  cudnnMathType_t mathType;
  int reserved[3];
} cudnnConvolutionFwdAlgoPerf_t;

typedef struct cudnnConvolutionBwdDataAlgoPerfStruct {
  cudnnConvolutionBwdDataAlgo_t algo;
  cudnnStatus_t status;
  float time;
  size_t memory;
  cudnnDeterminism_t determinism;
  cudnnMathType_t mathType;
  int reserved[3];
} cudnnConvolutionBwdDataAlgoPerf_t;

typedef struct cudnnConvolutionBwdFilterAlgoPerfStruct {
  cudnnConvolutionBwdFilterAlgo_t algo;
  cudnnStatus_t status;
  float time;
  size_t memory;
  cudnnDeterminism_t determinism;
  cudnnMathType_t mathType;
  int reserved[3];
} cudnnConvolutionBwdFilterAlgoPerf_t;

/* A library that defines these functions exports them, so they are visible. */
#pragma GCC visibility push(default)
#define MUCUDNN_DECLARE(result, function, parameters) result function parameters;
MUCUDNN_CUDNN_FUNCTIONS(MUCUDNN_DECLARE)
#undef MUCUDNN_DECLARE
#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
