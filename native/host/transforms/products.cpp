#include "host/transforms/products.hpp"

#ifdef MUCUDNN_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace mucudnn::host::transforms {

#ifdef MUCUDNN_AMX
namespace amx {
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const Factor& a, const Factor& b,
              float beta, float* c, std::int64_t stride, void* memory);
}

namespace {

bool processor_has_amx() {
  constexpr unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24;
  unsigned eax, ebx, ecx, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & amx_bf16) != 0 &&
         (edx & amx_tile) != 0 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

// Linux lets a process use AMX only after the process has asked for it. The answer holds for all its threads.
bool system_allows_amx() {
  constexpr long request_permission = 0x1023, tile_data = 18;
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

}  // namespace
#endif

BFloat16Product bfloat16_product() {
#ifdef MUCUDNN_AMX
  static const bool has_amx = processor_has_amx() && system_allows_amx();
  if (has_amx) return amx::multiply;
#endif
  return nullptr;
}

}  // namespace mucudnn::host::transforms
