// Searches for the libcudnn.so.9 that the drop-in hides. The loader cannot be asked for it by name: that name
// is already taken by the drop-in itself.
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>

#include "shim/state/real_library.hpp"

namespace mucudnn::shim {
namespace {

constexpr char kName[] = "libcudnn.so.9";

struct LoadedObject {
  std::string path;
  bool needs_cudnn = false;
  std::string rpath, runpath;  // folders, separated by colons
};

std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

// Returns "" for an object that is no file, such as the vDSO.
std::string path_of(const dl_phdr_info& info) {
  if (info.dlpi_name != nullptr && info.dlpi_name[0] == '/') return info.dlpi_name;
  if (info.dlpi_name != nullptr && info.dlpi_name[0] != '\0') return {};
  char program[PATH_MAX];  // the loader gives the program itself no name
  const ssize_t length = readlink("/proc/self/exe", program, sizeof program);
  return length <= 0 ? std::string() : std::string(program, static_cast<std::size_t>(length));
}

LoadedObject describe(const dl_phdr_info& info) {
  LoadedObject object;
  object.path = path_of(info);
  if (object.path.empty()) return object;
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    if (info.dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    const auto* const entries =
        reinterpret_cast<const ElfW(Dyn)*>(info.dlpi_addr + info.dlpi_phdr[i].p_vaddr);
    const char* strings = nullptr;
    for (const auto* entry = entries; entry->d_tag != DT_NULL; ++entry) {
      // The loader has already relocated DT_STRTAB from an offset to an address.
      if (entry->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(entry->d_un.d_ptr);
    }
    if (strings == nullptr) continue;
    for (const auto* entry = entries; entry->d_tag != DT_NULL; ++entry) {
      const char* text = strings + entry->d_un.d_val;
      if (entry->d_tag == DT_NEEDED && std::strcmp(text, kName) == 0) object.needs_cudnn = true;
      if (entry->d_tag == DT_RPATH) object.rpath = text;
      if (entry->d_tag == DT_RUNPATH) object.runpath = text;
    }
  }
  return object;
}

std::vector<LoadedObject> loaded_objects() {
  std::vector<LoadedObject> objects;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* list) {
        static_cast<std::vector<LoadedObject>*>(list)->push_back(describe(*info));
        return 0;
      },
      &objects);
  return objects;
}

std::string with_origin(std::string folder, const std::string& origin) {
  for (const char* token : {"${ORIGIN}", "$ORIGIN"}) {
    for (std::size_t at = 0; (at = folder.find(token, at)) != std::string::npos; at += origin.size()) {
      folder.replace(at, std::strlen(token), origin);
    }
  }
  return folder;
}

// LD_LIBRARY_PATH may lead to the drop-in too. It must not be taken for the real library.
bool is_the_shim(const struct stat& file) {
  Dl_info info{};
  struct stat own{};
  return dladdr(reinterpret_cast<const void*>(&is_the_shim), &info) != 0 && stat(info.dli_fname, &own) == 0 &&
         own.st_dev == file.st_dev && own.st_ino == file.st_ino;
}

void add(std::vector<std::string>& paths, const std::string& folder) {
  const std::string path = folder + "/" + kName;
  struct stat file{};
  if (stat(path.c_str(), &file) == 0 && S_ISREG(file.st_mode) && !is_the_shim(file)) paths.push_back(path);
}

void add_folders(std::vector<std::string>& paths, const std::string& folders, const std::string& origin) {
  for (std::size_t begin = 0; begin < folders.size();) {
    const std::size_t end = std::min(folders.find(':', begin), folders.size());
    if (end > begin) add(paths, with_origin(folders.substr(begin, end - begin), origin));
    begin = end + 1;
  }
}

// Follows the loader's order: the RPATH, then LD_LIBRARY_PATH, then the RUNPATH. The loader ignores the RPATH
// of an object that has a RUNPATH.
void add_search_path(std::vector<std::string>& paths, const LoadedObject& object) {
  const std::string origin = folder_of(object.path);
  if (object.runpath.empty()) add_folders(paths, object.rpath, origin);
  const char* variable = getenv("LD_LIBRARY_PATH");
  if (variable != nullptr) add_folders(paths, variable, origin);
  add_folders(paths, object.runpath, origin);
}

// Packagers put a copy of cuDNN into a wheel under a name with a hash, such as libcudnn-74a4c495.so.9.1.0.
// Its functions keep their version, libcudnn.so.9, so the drop-in captures the calls of whoever is linked
// against it.
bool is_renamed_cudnn(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  const std::size_t hash = std::strlen("libcudnn-");
  const std::size_t end = name.find(".so.9", hash);
  return name.compare(0, hash, "libcudnn-") == 0 && end != std::string::npos &&
         name.find_first_not_of("0123456789abcdef", hash) == end;
}

// All libraries of cuDNN lie in one folder. The drop-in does not hide libcudnn_graph.so.9, so the loader can
// be asked for it by name.
void add_folder_of_graph_library(std::vector<std::string>& paths) {
  void* graph = dlopen("libcudnn_graph.so.9", RTLD_LAZY | RTLD_LOCAL);
  if (graph == nullptr) return;
  link_map* map = nullptr;
  if (dlinfo(graph, RTLD_DI_LINKMAP, &map) == 0) add(paths, folder_of(map->l_name));
  dlclose(graph);
}

// Adds the folder of NVIDIA's cuDNN wheel, if `object` lies in the packages folder of a Python environment.
void add_package(std::vector<std::string>& paths, const std::string& object) {
  for (const char* packages : {"/site-packages/", "/dist-packages/"}) {
    const std::size_t at = object.rfind(packages);
    if (at == std::string::npos) continue;
    add(paths, object.substr(0, at + std::strlen(packages)) + "nvidia/cudnn/lib");
  }
}

}  // namespace

std::vector<std::string> find_libraries() {
  const std::vector<LoadedObject> objects = loaded_objects();
  std::vector<std::string> paths;
  for (const LoadedObject& object : objects) {
    if (object.needs_cudnn) add_search_path(paths, object);
  }
  for (const LoadedObject& object : objects) {
    if (is_renamed_cudnn(object.path)) paths.push_back(object.path);
  }
  // An object that opens cuDNN with dlopen() does not list it as needed. The loader searches with the same
  // paths for it.
  for (const LoadedObject& object : objects) {
    if (!object.needs_cudnn) add_search_path(paths, object);
  }
  if (!paths.empty()) return paths;
  add_folder_of_graph_library(paths);
  if (!paths.empty()) return paths;
  for (const LoadedObject& object : objects) add_package(paths, object.path);
  return paths;
}

}  // namespace mucudnn::shim
