#include <atomic>
#include <string_view>

#include "host/transforms/transforms.hpp"

namespace mucudnn::host::transforms {

namespace baseline {
extern const Kernels table;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels table;
}
namespace avx512 {
extern const Kernels table;
}
#endif

namespace {

// Returns the supported table at this index. The widest instruction set comes first, null behind the last.
const Kernels* supported(int index) {
  const Kernels* found[4] = {};
  int count = 0;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    found[count++] = &avx512::table;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found[count++] = &avx2::table;
#endif
  found[count++] = &baseline::table;
  return found[index];
}

std::atomic<const Kernels*>& selected() {
  static std::atomic<const Kernels*> table{supported(0)};
  return table;
}

}  // namespace

const Kernels& kernels() { return *selected(); }

const char* instruction_set() { return kernels().instruction_set; }

bool select_instruction_set(const char* name) {
  for (int i = 0; const Kernels* table = supported(i); ++i) {
    if (std::string_view(table->instruction_set) == name) {
      selected() = table;
      return true;
    }
  }
  return false;
}

}  // namespace mucudnn::host::transforms
