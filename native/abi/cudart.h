/* The part of the CUDA runtime's C ABI that clients of cuDNN's legacy convolutions call, for C and C++. It
 * replaces NVIDIA's header, so that a build does not need CUDA. tests/native/test_header_agrees.py checks
 * every declaration against the real header of CUDA 13. */
#ifndef MUCUDNN_CUDART_ABI_H
#define MUCUDNN_CUDART_ABI_H

#include <stddef.h>

/* X(enumerator, value, what cudaGetErrorString says) */
#define MUCUDNN_CUDART_ERRORS(X)                                              \
  X(cudaSuccess, 0, "no error")                                               \
  X(cudaErrorInvalidValue, 1, "invalid argument")                             \
  X(cudaErrorMemoryAllocation, 2, "out of memory")                            \
  X(cudaErrorInvalidPitchValue, 12, "invalid pitch argument")                 \
  X(cudaErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy") \
  X(cudaErrorInvalidDevice, 101, "invalid device ordinal")                    \
  X(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")

/* X(result, function, parameters) */
#define MUCUDNN_CUDART_FUNCTIONS(X)                                                                   \
  X(cudaError_t, cudaMalloc, (void** device, size_t size))                                            \
  X(cudaError_t, cudaFree, (void* device))                                                            \
  X(cudaError_t, cudaMallocHost, (void** host, size_t size))                                          \
  X(cudaError_t, cudaHostAlloc, (void** host, size_t size, unsigned int flags))                       \
  X(cudaError_t, cudaFreeHost, (void* host))                                                          \
  X(cudaError_t, cudaMemcpy, (void* to, const void* from, size_t size, enum cudaMemcpyKind kind))     \
  X(cudaError_t, cudaMemcpyAsync,                                                                     \
    (void* to, const void* from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream))         \
  X(cudaError_t, cudaMemset, (void* to, int value, size_t size))                                      \
  X(cudaError_t, cudaMemsetAsync, (void* to, int value, size_t size, cudaStream_t stream))            \
  X(cudaError_t, cudaMemcpy2DAsync,                                                                   \
    (void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,     \
     enum cudaMemcpyKind kind, cudaStream_t stream))                                                  \
  X(cudaError_t, cudaMemset2DAsync,                                                                   \
    (void* to, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream))            \
  X(cudaError_t, cudaMemGetInfo, (size_t* available, size_t* total))                                  \
  X(cudaError_t, cudaStreamCreate, (cudaStream_t * stream))                                           \
  X(cudaError_t, cudaStreamCreateWithFlags, (cudaStream_t * stream, unsigned int flags))              \
  X(cudaError_t, cudaStreamDestroy, (cudaStream_t stream))                                            \
  X(cudaError_t, cudaStreamSynchronize, (cudaStream_t stream))                                        \
  X(cudaError_t, cudaStreamIsCapturing, (cudaStream_t stream, enum cudaStreamCaptureStatus * status)) \
  X(cudaError_t, cudaThreadExchangeStreamCaptureMode, (enum cudaStreamCaptureMode * mode))            \
  X(cudaError_t, cudaEventCreate, (cudaEvent_t * event))                                              \
  X(cudaError_t, cudaEventCreateWithFlags, (cudaEvent_t * event, unsigned int flags))                 \
  X(cudaError_t, cudaEventDestroy, (cudaEvent_t event))                                               \
  X(cudaError_t, cudaEventRecord, (cudaEvent_t event, cudaStream_t stream))                           \
  X(cudaError_t, cudaEventSynchronize, (cudaEvent_t event))                                           \
  X(cudaError_t, cudaEventElapsedTime, (float* milliseconds, cudaEvent_t start, cudaEvent_t end))     \
  X(cudaError_t, cudaGetDevice, (int* device))                                                        \
  X(cudaError_t, cudaSetDevice, (int device))                                                         \
  X(cudaError_t, cudaGetDeviceCount, (int* count))                                                    \
  X(cudaError_t, cudaDeviceGetAttribute, (int* value, enum cudaDeviceAttr attribute, int device))     \
  X(cudaError_t, cudaGetDeviceProperties, (struct cudaDeviceProp * properties, int device))           \
  X(cudaError_t, cudaDeviceSynchronize, (void))                                                       \
  X(cudaError_t, cudaGetLastError, (void))                                                            \
  X(cudaError_t, cudaPeekAtLastError, (void))                                                         \
  X(const char*, cudaGetErrorString, (cudaError_t error))                                             \
  X(const char*, cudaGetErrorName, (cudaError_t error))                                               \
  X(cudaError_t, cudaRuntimeGetVersion, (int* version))                                               \
  X(cudaError_t, cudaDriverGetVersion, (int* version))

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;

#define cudaStreamDefault 0x00
#define cudaStreamNonBlocking 0x01
#define cudaEventDefault 0x00
#define cudaEventBlockingSync 0x01
#define cudaEventDisableTiming 0x02
#define cudaEventInterprocess 0x04

/* A program may pass any number for an enumerator. In C++ only a fixed underlying type makes every number
 * valid. */
#ifdef __cplusplus
#define MUCUDNN_ANY_NUMBER : unsigned int
#else
#define MUCUDNN_ANY_NUMBER
#endif

#define MUCUDNN_ERROR(enumerator, value, text) enumerator = value,
typedef enum cudaError MUCUDNN_ANY_NUMBER { MUCUDNN_CUDART_ERRORS(MUCUDNN_ERROR) } cudaError_t;
#undef MUCUDNN_ERROR

typedef enum cudaMemcpyKind MUCUDNN_ANY_NUMBER {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4
} cudaMemcpyKind;

typedef enum cudaStreamCaptureStatus MUCUDNN_ANY_NUMBER {
  cudaStreamCaptureStatusNone = 0,
  cudaStreamCaptureStatusActive = 1,
  cudaStreamCaptureStatusInvalidated = 2
} cudaStreamCaptureStatus;

typedef enum cudaStreamCaptureMode MUCUDNN_ANY_NUMBER {
  cudaStreamCaptureModeGlobal = 0,
  cudaStreamCaptureModeThreadLocal = 1,
  cudaStreamCaptureModeRelaxed = 2
} cudaStreamCaptureMode;

typedef enum cudaDeviceAttr MUCUDNN_ANY_NUMBER {
  cudaDevAttrMaxThreadsPerBlock = 1,
  cudaDevAttrWarpSize = 10,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrIntegrated = 18,
  cudaDevAttrPciBusId = 33,
  cudaDevAttrPciDeviceId = 34,
  cudaDevAttrPciDomainId = 50,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76
} cudaDeviceAttr;

#undef MUCUDNN_ANY_NUMBER

typedef struct cudaDeviceProp {
  char name[256];
  char uuid[16];
  char luid[8];
  unsigned int luidDeviceNodeMask;
  size_t totalGlobalMem;
  size_t sharedMemPerBlock;
  int regsPerBlock;
  int warpSize;
  size_t memPitch;
  int maxThreadsPerBlock;
  int maxThreadsDim[3];
  int maxGridSize[3];
  size_t totalConstMem;
  int major;
  int minor;
  size_t textureAlignment;
  size_t texturePitchAlignment;
  int multiProcessorCount;
  int integrated;
  int undeclared[153]; /* more properties, which nothing here reads or writes */
} cudaDeviceProp;

/* A library that defines these functions exports them, so they are visible. */
#pragma GCC visibility push(default)
#define MUCUDNN_DECLARE(result, function, parameters) result function parameters;
MUCUDNN_CUDART_FUNCTIONS(MUCUDNN_DECLARE)
#undef MUCUDNN_DECLARE
#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
