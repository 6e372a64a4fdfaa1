/* Stand-ins for two libraries that NVIDIA's cuDNN opens before it plans without a device: a driver that has
 * no device, and a cuBLASLt with a version and no handle. The tests build this file under both names. */
#include <stddef.h>

#define NO_DEVICE 100

#define REFUSE(function) \
  int function(void);    \
  int function(void) { return NO_DEVICE; }
REFUSE(cuInit)
REFUSE(cuGetProcAddress)
REFUSE(cuGetProcAddress_v2)
REFUSE(cuModuleGetFunction)
REFUSE(cuModuleLoadData)
REFUSE(cuModuleUnload)
REFUSE(cuTensorMapEncodeIm2col)
REFUSE(cuTensorMapEncodeTiled)
#ifdef COMPILES /* The functions without which cuDNN plans no engine that it compiles at run time. */
REFUSE(cuCtxGetCurrent)
REFUSE(cuCtxGetLimit)
REFUSE(cuCtxPopCurrent)
REFUSE(cuCtxPushCurrent)
REFUSE(cuDeviceGet)
REFUSE(cuGetErrorName)
REFUSE(cuKernelGetAttribute)
REFUSE(cuKernelGetFunction)
REFUSE(cuKernelSetAttribute)
REFUSE(cuLaunchCooperativeKernel)
REFUSE(cuLaunchKernel)
REFUSE(cuLaunchKernelEx)
REFUSE(cuLibraryGetKernel)
REFUSE(cuLibraryLoadData)
REFUSE(cuLibraryLoadFromFile)
REFUSE(cuLibraryUnload)
REFUSE(cuLinkAddData)
REFUSE(cuLinkComplete)
REFUSE(cuLinkCreate)
REFUSE(cuLinkDestroy)
REFUSE(cuOccupancyMaxPotentialClusterSize)
REFUSE(cuStreamGetCtx)
#endif

int cuDeviceGetCount(int* count);
int cuDeviceGetCount(int* count) {
  *count = 0;
  return NO_DEVICE;
}

int cuDriverGetVersion(int* version);
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}

int cuGetErrorString(int error, const char** text);
int cuGetErrorString(int error, const char** text) {
  *text = "a stand-in for the driver";
  return 0;
}

size_t cublasLtGetVersion(void);
size_t cublasLtGetVersion(void) { return 130000; }

#define NOT_INITIALIZED 1

int cublasLtCreate(void** handle);
int cublasLtCreate(void** handle) {
  *handle = NULL;
  return NOT_INITIALIZED;
}
