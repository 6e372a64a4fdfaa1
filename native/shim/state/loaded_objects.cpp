#include "shim/state/loaded_objects.hpp"

#include <unistd.h>

#include <climits>
#include <cstring>
#include <new>

namespace mucudnn::shim {
namespace {

// Returns "" for an object without a file, such as the vDSO.
std::string path_of(const dl_phdr_info& info) {
  if (info.dlpi_name != nullptr && info.dlpi_name[0] == '/') return info.dlpi_name;
  if (info.dlpi_name != nullptr && info.dlpi_name[0] != '\0') return {};
  char program[PATH_MAX];  // the loader gives the program itself no name
  const ssize_t length = readlink("/proc/self/exe", program, sizeof program);
  return length <= 0 ? std::string() : std::string(program, static_cast<std::size_t>(length));
}

void add(const dl_phdr_info& info, std::vector<LoadedObject>& objects) {
  const std::string path = path_of(info);
  for (int i = 0; i < info.dlpi_phnum && !path.empty(); ++i) {
    if (info.dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    const auto* const dynamic =
        reinterpret_cast<const ElfW(Dyn)*>(info.dlpi_addr + info.dlpi_phdr[i].p_vaddr);
    objects.push_back({path, info.dlpi_addr, dynamic});
  }
}

}  // namespace

const ElfW(Dyn) * LoadedObject::find(ElfW(Sxword) tag) const {
  for (const auto* entry = dynamic; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == tag) return entry;
  }
  return nullptr;
}

std::string LoadedObject::text(ElfW(Sxword) tag) const {
  const auto* const entry = find(tag);
  const char* const strings = address<char>(DT_STRTAB);
  return entry == nullptr || strings == nullptr ? "" : strings + entry->d_un.d_val;
}

bool LoadedObject::needs(const char* library) const {
  const char* const strings = address<char>(DT_STRTAB);
  for (const auto* entry = dynamic; strings != nullptr && entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_NEEDED && std::strcmp(strings + entry->d_un.d_val, library) == 0) return true;
  }
  return false;
}

std::vector<LoadedObject> loaded_objects() {
  struct Objects {
    std::vector<LoadedObject> list;
    bool is_out_of_memory = false;
  } objects;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        Objects& all = *static_cast<Objects*>(data);
        try {
          add(*info, all.list);
        } catch (const std::bad_alloc&) {  // no exception may pass through the loader
          all.is_out_of_memory = true;
        }
        return all.is_out_of_memory ? 1 : 0;
      },
      &objects);
  if (objects.is_out_of_memory) throw std::bad_alloc();
  return std::move(objects.list);
}

}  // namespace mucudnn::shim
