#include "shim/state/older_program.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "shim/state/loaded_objects.hpp"

namespace mucudnn::shim {
namespace {

// Functions that cuDNN 8 has and cuDNN 9 lacks, as far as frameworks call them.
constexpr std::string_view kDropped[] = {
    "cudnnAdvInferVersionCheck", "cudnnAdvTrainVersionCheck", "cudnnCnnInferVersionCheck",
    "cudnnCnnTrainVersionCheck", "cudnnGetRNNParamsSize",     "cudnnGetRNNTrainingReserveSize",
    "cudnnGetRNNWorkspaceSize",  "cudnnOpsInferVersionCheck", "cudnnOpsTrainVersionCheck",
    "cudnnRNNBackwardData",      "cudnnRNNBackwardWeights",   "cudnnRNNForwardInference",
    "cudnnRNNForwardTraining",   "cudnnSetRNNDescriptor_v6",
};

bool calls_dropped_function(const LoadedObject& object) {
  const auto* const strings = object.address<char>(DT_STRTAB);
  const auto* const symbols = object.address<ElfW(Sym)>(DT_SYMTAB);
  if (strings == nullptr || symbols == nullptr) return false;
  // The relocations of functions, and all others.
  for (const auto& [table, bytes] : {std::pair{DT_JMPREL, DT_PLTRELSZ}, std::pair{DT_RELA, DT_RELASZ}}) {
    const auto* const first = object.address<ElfW(Rela)>(table);
    const auto* const size = object.find(bytes);
    if (first == nullptr || size == nullptr) continue;
    const auto* const last = first + size->d_un.d_val / sizeof *first;
    const bool is_called = std::any_of(first, last, [&](const ElfW(Rela) & relocation) {
      const auto symbol = ELF64_R_SYM(relocation.r_info);
      const std::string_view name = strings + symbols[symbol].st_name;
      return symbol != 0 && std::find(std::begin(kDropped), std::end(kDropped), name) != std::end(kDropped);
    });
    if (is_called) return true;
  }
  return false;
}

// Returns whether the object itself, and none of the libraries that it needs, defines functions of cuDNN.
bool defines_cudnn(const LoadedObject& object) {
  void* const handle = dlopen(object.path.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
  if (handle == nullptr) return false;
  const void* const version = dlsym(handle, "cudnnGetVersion");
  Dl_info info{};
  const bool own = version != nullptr && dladdr(version, &info) != 0 &&
                   reinterpret_cast<ElfW(Addr)>(info.dli_fbase) == object.base;
  dlclose(handle);
  return own;
}

// cuDNN itself, of any version, forwards nothing.
bool is_cudnn(const std::string& path) { return path.find("/libcudnn", path.rfind('/')) != path.npos; }

}  // namespace

std::string find_forwarder_to_cudnn_8() {
  std::string forwarder;
  for (const LoadedObject& object : loaded_objects()) {
    if (object.needs("libcudnn.so.9")) return {};
    if (forwarder.empty() && !is_cudnn(object.path) && defines_cudnn(object) &&
        calls_dropped_function(object))
      forwarder = object.path;
  }
  return forwarder;
}

}  // namespace mucudnn::shim
