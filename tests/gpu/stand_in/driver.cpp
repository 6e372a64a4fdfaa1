// The functions of the CUDA driver and of NVML that XLA calls, on the CUDA runtime of the stand-in. The
// device is described as an H100 where XLA's compiler wants to know. XLA's own kernels cannot run: launching
// one is an error that names the kernel. With STAND_IN_LEAVES_KERNELS a launch does nothing instead.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#undef cuEventElapsedTime  // a header renames the older function

namespace {

constexpr size_t kMemory = size_t{1} << 33;
int something;  // contexts, modules and devices of NVML have this address

CUresult result_of(cudaError_t error) { return static_cast<CUresult>(error); }
void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

template <typename Handle>
CUresult give(Handle* to) {
  *to = reinterpret_cast<Handle>(&something);
  return CUDA_SUCCESS;
}

template <typename Value>
CUresult give(Value* to, Value value) {
  if (to != nullptr) *to = value;
  return CUDA_SUCCESS;
}

CUresult copy(void* to, const void* from, size_t size) { return std::memmove(to, from, size), CUDA_SUCCESS; }

template <typename Number>
CUresult fill(CUdeviceptr to, Number value, size_t count) {
  std::fill_n(static_cast<Number*>(pointer(to)), count, value);
  return CUDA_SUCCESS;
}

// Returns the address of a name that lives as long as the process. It stands for the kernel.
CUfunction kernel_of(const char* name) {
  static std::mutex mutex;
  static auto* const names = new std::map<std::string, int>;
  std::lock_guard<std::mutex> const lock(mutex);
  return reinterpret_cast<CUfunction>(const_cast<char*>(names->emplace(name, 0).first->first.c_str()));
}

CUresult refuse(CUfunction kernel) {
  if (std::getenv("STAND_IN_LEAVES_KERNELS") != nullptr) return CUDA_SUCCESS;
  std::fprintf(stderr, "no device runs the kernel %s\n", reinterpret_cast<const char*>(kernel));
  return CUDA_ERROR_NOT_SUPPORTED;
}

int value_of(CUdevice_attribute attribute) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return 9;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return 132;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
      return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
      return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      return 2048;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
      return 0x7fffffff;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
      return 0xffff;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
      return 48 << 10;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      return 227 << 10;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      return 228 << 10;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
      return 1 << 16;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
      return 50 << 20;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
      return 2000000;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
      return 5120;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      return 1;  // XLA demands it
    default:
      return 0;
  }
}

}  // namespace

extern "C" {

CUresult cuGetErrorName(CUresult error, const char** text) {
  return give(text, cudaGetErrorName(static_cast<cudaError_t>(error)));
}
CUresult cuGetErrorString(CUresult error, const char** text) {
  return give(text, cudaGetErrorString(static_cast<cudaError_t>(error)));
}

CUresult cuDeviceGetCount(int* count) { return give(count, 1); }
CUresult cuDeviceGet(CUdevice* device, int) { return give(device, 0); }
CUresult cuDeviceGetName(char* name, int size, CUdevice) {
  return std::snprintf(name, static_cast<size_t>(size), "mucudnn stand-in"), CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice) { return give(uuid, CUuuid{}); }
CUresult cuDeviceGetPCIBusId(char* id, int size, CUdevice) {
  return std::snprintf(id, static_cast<size_t>(size), "0000:00:00.0"), CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem_v2(size_t* size, CUdevice) { return give(size, kMemory); }
CUresult cuDeviceCanAccessPeer(int* can, CUdevice, CUdevice) { return give(can, 0); }
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  return give(value, value_of(attribute));
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) { return give(context); }
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice, unsigned) { return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext* context) { return give(context); }
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice* device) { return give(device, 0); }
CUresult cuCtxSynchronize() { return CUDA_SUCCESS; }
CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  give(least, 0);
  return give(greatest, 0);
}

CUresult cuMemGetInfo_v2(size_t* available, size_t* total) {
  give(total, kMemory);
  return give(available, kMemory);
}
CUresult cuMemAlloc_v2(CUdeviceptr* memory, size_t size) {
  return result_of(cudaMalloc(reinterpret_cast<void**>(memory), size));
}
CUresult cuMemFree_v2(CUdeviceptr memory) { return result_of(cudaFree(pointer(memory))); }
CUresult cuMemHostAlloc(void** memory, size_t size, unsigned) { return result_of(cudaMalloc(memory, size)); }
CUresult cuMemFreeHost(void* memory) { return result_of(cudaFree(memory)); }
CUresult cuMemHostRegister_v2(void*, size_t, unsigned) { return CUDA_SUCCESS; }
CUresult cuMemHostUnregister(void*) { return CUDA_SUCCESS; }

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return give(static_cast<unsigned*>(value), unsigned{CU_MEMORYTYPE_DEVICE});
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return give(static_cast<int*>(value), 0);
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return give(static_cast<CUcontext*>(value));
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// The device's virtual memory is the host's from the moment that an address range is reserved.
CUresult cuMemGetAllocationGranularity(size_t* size, const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags) {
  return give(size, size_t{1} << 21);
}
CUresult cuMemAddressReserve(CUdeviceptr* address, size_t size, size_t, CUdeviceptr, unsigned long long) {
  void* const memory =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  return give(address, reinterpret_cast<CUdeviceptr>(memory));
}
CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
  return munmap(pointer(address), size), CUDA_SUCCESS;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t, const CUmemAllocationProp*,
                     unsigned long long) {
  return give(handle, CUmemGenericAllocationHandle{1});
}
CUresult cuMemRelease(CUmemGenericAllocationHandle) { return CUDA_SUCCESS; }
CUresult cuMemMap(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) {
  return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr, size_t) { return CUDA_SUCCESS; }
CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }

CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t size) { return copy(to, pointer(from), size); }
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t size) {
  return copy(pointer(to), from, size);
}
CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size) {
  return copy(pointer(to), pointer(from), size);
}
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t size, CUstream) {
  return copy(to, pointer(from), size);
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t size, CUstream) {
  return copy(pointer(to), from, size);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream) {
  return copy(pointer(to), pointer(from), size);
}
CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) { return fill(to, value, count); }
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream) {
  return fill(to, value, count);
}
CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) { return fill(to, value, count); }
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream) {
  return fill(to, value, count);
}

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  return result_of(cudaStreamCreateWithFlags(stream, flags));
}
CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int) {
  return cuStreamCreate(stream, flags);
}
CUresult cuStreamDestroy_v2(CUstream stream) { return result_of(cudaStreamDestroy(stream)); }
CUresult cuStreamSynchronize(CUstream) { return CUDA_SUCCESS; }
CUresult cuStreamQuery(CUstream) { return CUDA_SUCCESS; }
CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned) { return CUDA_SUCCESS; }
CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
  return give(status, CU_STREAM_CAPTURE_STATUS_NONE);
}
CUresult cuLaunchHostFunc(CUstream, CUhostFn function, void* argument) {
  return function(argument), CUDA_SUCCESS;
}
CUresult cuEventCreate(CUevent* event, unsigned flags) {
  return result_of(cudaEventCreateWithFlags(event, flags));
}
CUresult cuEventDestroy_v2(CUevent event) { return result_of(cudaEventDestroy(event)); }
CUresult cuEventRecord(CUevent event, CUstream stream) { return result_of(cudaEventRecord(event, stream)); }
CUresult cuEventSynchronize(CUevent) { return CUDA_SUCCESS; }
CUresult cuEventQuery(CUevent) { return CUDA_SUCCESS; }
CUresult cuEventElapsedTime(float* time, CUevent start, CUevent end) {
  return result_of(cudaEventElapsedTime(time, start, end));
}

CUresult cuEventElapsedTime_v2(float* time, CUevent start, CUevent end) {
  return cuEventElapsedTime(time, start, end);
}

CUresult cuModuleLoadDataEx(CUmodule* module, const void*, unsigned, CUjit_option*, void**) {
  return give(module);
}
CUresult cuModuleLoadFatBinary(CUmodule* module, const void*) { return give(module); }
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  return give(function, kernel_of(name));
}
// XLA copies its constants to this address. No kernel reads them.
CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* size, CUmodule, const char*) {
  give(size, kMemory);
  return cuMemAddressReserve(address, kMemory, 0, 0, 0);
}
CUresult cuTensorMapEncodeTiled(CUtensorMap*, CUtensorMapDataType, unsigned, void*, const cuuint64_t*,
                                const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                                CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                CUtensorMapFloatOOBfill) {
  return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
  return give(value, attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0);
}
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int, size_t) {
  return give(blocks, 1);
}
CUresult cuLaunchKernel(CUfunction kernel, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        unsigned, CUstream, void**, void**) {
  return refuse(kernel);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig*, CUfunction kernel, void**, void**) { return refuse(kernel); }

// NVML tells XLA how many devices there are.
int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) { return give(count, 1u); }
int nvmlSystemGetDriverVersion(char* version, unsigned size) {
  return std::snprintf(version, size, "580.65.06"), 0;
}

}  // extern "C"
