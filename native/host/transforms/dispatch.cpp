// The table from the processor's features to the kernels that are compiled for them.
#include <algorithm>
#include <iterator>

#include "host/transforms/transforms.hpp"

namespace mucudnn::host::transforms {

namespace baseline {
extern const Kernels table;
}
namespace avx2 {
extern const Kernels table;
}
namespace avx512 {
extern const Kernels table;
}

namespace {

struct InstructionSet {
  const Kernels* kernels;
  bool (*is_supported)();
};

// The widest instruction set comes first.
constexpr InstructionSet kInstructionSets[] = {
#if defined(__x86_64__)
    {&avx512::table,
     [] {
       return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
     }},
    {&avx2::table, [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }},
#endif
    {&baseline::table, [] { return true; }},
};

}  // namespace

const Kernels& kernels() {
  static const Kernels& widest =
      *std::find_if(std::begin(kInstructionSets), std::end(kInstructionSets), [](const InstructionSet& set) {
         return set.is_supported();
       })->kernels;
  return widest;
}

}  // namespace mucudnn::host::transforms
