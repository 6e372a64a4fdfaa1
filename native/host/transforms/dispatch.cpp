// The table from the processor's features to the kernels that are compiled for them.
#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include <cblas.h>

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

// OPENBLAS_CORETYPE makes OpenBLAS take the kernels of an older processor. Ours are then those of the same
// processor, because the instruction set also says how OpenBLAS multiplies.
bool is_excluded(const InstructionSet& set) {
  const char* named = std::getenv("OPENBLAS_CORETYPE");
  if (named == nullptr || *named == '\0') return false;
  const std::string_view core = scipy_openblas_get_corename(), name = set.kernels->instruction_set;
  const bool has_avx512 = core == "SkylakeX" || core == "Cooperlake" || core == "SapphireRapids";
  const bool has_avx2 = has_avx512 || core == "Haswell" || core == "Zen";
  return (name == "avx512" && !has_avx512) || (name == "avx2" && !has_avx2);
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& widest =
      *std::find_if(std::begin(kInstructionSets), std::end(kInstructionSets), [](const InstructionSet& set) {
         return set.is_supported() && !is_excluded(set);
       })->kernels;
  return widest;
}

}  // namespace mucudnn::host::transforms
