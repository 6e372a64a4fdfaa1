#include "shim/state/older_program.hpp"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

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

struct Object {
  std::string path;
  ElfW(Addr) base = 0;
  const ElfW(Dyn) * dynamic = nullptr;
};

// The parts of an object's dynamic section that name the functions which it calls.
struct Calls {
  const char* strings = nullptr;
  const ElfW(Sym) * symbols = nullptr;
  const ElfW(Rela) * relocations[2] = {};  // for functions alone, and all others
  std::size_t bytes[2] = {};
  bool needs_cudnn_9 = false;
};

Calls read_calls(const Object& object) {
  Calls calls;
  for (const auto* entry = object.dynamic; entry->d_tag != DT_NULL; ++entry) {
    const auto* const address = reinterpret_cast<const void*>(entry->d_un.d_ptr);
    if (entry->d_tag == DT_STRTAB) calls.strings = static_cast<const char*>(address);
    if (entry->d_tag == DT_SYMTAB) calls.symbols = static_cast<const ElfW(Sym)*>(address);
    if (entry->d_tag == DT_JMPREL) calls.relocations[0] = static_cast<const ElfW(Rela)*>(address);
    if (entry->d_tag == DT_PLTRELSZ) calls.bytes[0] = entry->d_un.d_val;
    if (entry->d_tag == DT_RELA) calls.relocations[1] = static_cast<const ElfW(Rela)*>(address);
    if (entry->d_tag == DT_RELASZ) calls.bytes[1] = entry->d_un.d_val;
  }
  if (calls.strings == nullptr) return calls;
  for (const auto* entry = object.dynamic; entry->d_tag != DT_NULL; ++entry) {
    calls.needs_cudnn_9 |=
        entry->d_tag == DT_NEEDED && std::strcmp(calls.strings + entry->d_un.d_val, "libcudnn.so.9") == 0;
  }
  return calls;
}

bool calls_dropped_function(const Calls& calls) {
  if (calls.strings == nullptr || calls.symbols == nullptr) return false;
  for (int part = 0; part < 2; ++part) {
    const ElfW(Rela)* const first = calls.relocations[part];
    if (first == nullptr) continue;
    const ElfW(Rela)* const last = first + calls.bytes[part] / sizeof(ElfW(Rela));
    const bool found = std::any_of(first, last, [&](const ElfW(Rela) & relocation) {
      const auto symbol = ELF64_R_SYM(relocation.r_info);
      if (symbol == 0) return false;
      const std::string_view name = calls.strings + calls.symbols[symbol].st_name;
      return std::find(std::begin(kDropped), std::end(kDropped), name) != std::end(kDropped);
    });
    if (found) return true;
  }
  return false;
}

struct Objects {
  std::vector<Object> list;
  bool is_complete = true;
};

void add(const dl_phdr_info& info, std::vector<Object>& list) {
  const std::string path = info.dlpi_name == nullptr ? "" : info.dlpi_name;
  for (int i = 0; i < info.dlpi_phnum && !path.empty() && path[0] == '/'; ++i) {
    if (info.dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    const auto* const dynamic =
        reinterpret_cast<const ElfW(Dyn)*>(info.dlpi_addr + info.dlpi_phdr[i].p_vaddr);
    list.push_back({path, info.dlpi_addr, dynamic});
  }
}

// Throws std::bad_alloc.
std::vector<Object> loaded_libraries() {
  Objects objects;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        Objects& found = *static_cast<Objects*>(data);
        try {
          add(*info, found.list);
        } catch (const std::bad_alloc&) {  // no exception may pass through the loader
          found.is_complete = false;
        }
        return found.is_complete ? 0 : 1;
      },
      &objects);
  if (!objects.is_complete) throw std::bad_alloc();
  return std::move(objects.list);
}

// Returns whether the object itself, and none of the libraries that it needs, defines functions of cuDNN.
bool defines_cudnn(const Object& object) {
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
  std::string found;
  for (const Object& object : loaded_libraries()) {
    const Calls calls = read_calls(object);
    if (calls.needs_cudnn_9) return {};
    if (found.empty() && !is_cudnn(object.path) && defines_cudnn(object) && calls_dropped_function(calls)) {
      found = object.path;
    }
  }
  return found;
}

}  // namespace mucudnn::shim
