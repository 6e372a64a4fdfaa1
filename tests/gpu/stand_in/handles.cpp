// The functions of cuBLAS by which a program gets a handle as it starts. The functions that compute refuse.
namespace {

using Status = int;
constexpr Status kSuccess = 0;
int handle_of_all;

Status give(void** handle) { return *handle = &handle_of_all, kSuccess; }

}  // namespace

extern "C" {

Status cublasCreate_v2(void** handle) { return give(handle); }
Status cublasDestroy_v2(void*) { return kSuccess; }
Status cublasSetStream_v2(void*, void*) { return kSuccess; }
Status cublasSetMathMode(void*, int) { return kSuccess; }
Status cublasLtCreate(void** handle) { return give(handle); }
Status cublasLtDestroy(void*) { return kSuccess; }
const char* cublasGetStatusName(Status) { return "CUBLAS_STATUS_NOT_SUPPORTED"; }
const char* cublasGetStatusString(Status) { return "not supported"; }

}  // extern "C"
