#include "shim/state/find_libraries.hpp"

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "shim/state/loaded_objects.hpp"

namespace mucudnn::shim {
namespace {

constexpr char kName[] = "libcudnn.so.9";

std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

std::string with_origin(std::string folder, const std::string& origin) {
  for (const char* token : {"${ORIGIN}", "$ORIGIN"}) {
    for (std::size_t at = 0; (at = folder.find(token, at)) != std::string::npos; at += origin.size()) {
      folder.replace(at, std::strlen(token), origin);
    }
  }
  return folder;
}

// LD_LIBRARY_PATH may lead to the drop-in too, which must not be taken for the real library.
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
  const std::string origin = folder_of(object.path), runpath = object.text(DT_RUNPATH);
  if (runpath.empty()) add_folders(paths, object.text(DT_RPATH), origin);
  const char* variable = getenv("LD_LIBRARY_PATH");
  if (variable != nullptr) add_folders(paths, variable, origin);
  add_folders(paths, runpath, origin);
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
    if (object.needs(kName)) add_search_path(paths, object);
  }
  for (const LoadedObject& object : objects) {
    if (is_renamed_cudnn(object.path)) paths.push_back(object.path);
  }
  // An object that opens cuDNN with dlopen() does not list it as needed. The loader searches with the same
  // paths for it.
  for (const LoadedObject& object : objects) {
    if (!object.needs(kName)) add_search_path(paths, object);
  }
  if (!paths.empty()) return paths;
  add_folder_of_graph_library(paths);
  if (!paths.empty()) return paths;
  for (const LoadedObject& object : objects) add_package(paths, object.path);
  return paths;
}

}  // namespace mucudnn::shim
