#include "host/threads/openmp.hpp"

#include <dlfcn.h>
#include <link.h>

#include <array>
#include <atomic>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "host/threads/forks.hpp"

namespace mucudnn::host::openmp {
namespace {

// The thread sanitizer does not see how a runtime's threads wait for each other.
#if defined(__SANITIZE_THREAD__)
constexpr bool kSanitizedThreads = true;
#else
constexpr bool kSanitizedThreads = false;
#endif

// GCC's, LLVM's and Intel's runtimes have these functions. A team has the default size if `threads` is 0.
struct Runtime {
  void (*parallel)(void (*work)(void*), void* data, unsigned threads, unsigned flags) = nullptr;
  int (*team_size)() = nullptr;
  int (*thread_number)() = nullptr;  // returns the calling thread's number in its team

  explicit Runtime(void* library)
      : parallel(reinterpret_cast<decltype(parallel)>(dlsym(library, "GOMP_parallel"))),
        team_size(reinterpret_cast<decltype(team_size)>(dlsym(library, "omp_get_max_threads"))),
        thread_number(reinterpret_cast<decltype(thread_number)>(dlsym(library, "omp_get_thread_num"))) {}
  bool complete() const { return parallel != nullptr && team_size != nullptr && thread_number != nullptr; }
};

// PyTorch comes first: its dependencies say which of several runtimes it calls.
constexpr std::array<std::string_view, 4> kNames{"libtorch_cpu.", "libgomp", "libiomp", "libomp"};

using Object = int (*)(dl_phdr_info* object, std::size_t size, void* data);

// A fork must not happen while this thread holds the loader's lock.
void for_each_object(Object object, void* data) {
  const NoFork no_fork;
  dl_iterate_phdr(object, data);
}

// Returns how many objects the process has loaded so far.
unsigned long long count_loads() {
  unsigned long long loads = 0;
  for_each_object(
      [](dl_phdr_info* first, std::size_t, void* data) {
        *static_cast<unsigned long long*>(data) = first->dlpi_adds;
        return 1;
      },
      &loads);
  return loads;
}

std::vector<std::string> paths_of_objects() {
  std::vector<std::string> paths;
  for_each_object(
      [](dl_phdr_info* object, std::size_t, void* data) {
        static_cast<std::vector<std::string>*>(data)->emplace_back(object->dlpi_name);
        return 0;
      },
      &paths);
  return paths;
}

// Returns null if no runtime is loaded. A runtime stays loaded from here on.
const Runtime* find() {
  const Runtime global(RTLD_DEFAULT);
  if (global.complete()) return new Runtime(global);
  const std::vector<std::string> paths = paths_of_objects();
  for (const std::string_view name : kNames) {
    for (const std::string& path : paths) {
      const std::string_view file = std::string_view(path).substr(path.rfind('/') + 1);
      if (file.substr(0, name.size()) != name) continue;
      void* const library = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
      if (library == nullptr) continue;
      const Runtime candidate(library);
      if (candidate.complete()) return new Runtime(candidate);
      dlclose(library);
    }
  }
  return nullptr;
}

// Searches again after the process has loaded more objects: a program may import PyTorch later.
const Runtime* runtime() {
  static std::atomic<const Runtime*> known{nullptr};
  static std::atomic<unsigned long long> searched{0};
  if (known != nullptr) return known;
  const unsigned long long loads = count_loads();
  if (searched == loads) return nullptr;
  known = find();
  searched = loads;
  return known;
}

struct Team {
  const Runtime& runtime;
  const std::function<void(int thread)>& work;
  const int threads;
};

void join(void* data) {
  const auto& team = *static_cast<const Team*>(data);
  const int thread = team.runtime.thread_number();
  if (thread < team.threads) team.work(thread);
}

}  // namespace

// The ninth field behind the name holds the kernel's flags of the process. The name itself may hold any
// character.
bool usable() {
  if (kSanitizedThreads) return false;
  constexpr unsigned long kForkedWithoutExec = 0x40;
  constexpr int kFieldsBetween = 6;
  std::ifstream file("/proc/self/stat");
  std::string line;
  if (!std::getline(file, line)) return false;
  std::size_t at = line.rfind(')');
  for (int field = 0; field <= kFieldsBetween && at != std::string::npos; ++field)
    at = line.find(' ', at + 1);
  if (at == std::string::npos) return false;
  return (std::stoul(line.substr(at + 1)) & kForkedWithoutExec) == 0;
}

bool run(int threads, const std::function<void(int thread)>& work) {
  const Runtime* const loaded = runtime();
  if (loaded == nullptr || loaded->team_size() < threads) return false;
  Team team{*loaded, work, threads};
  loaded->parallel(join, &team, 0, 0);
  return true;
}

}  // namespace mucudnn::host::openmp
