#include "cudnn/survey.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <new>

#include "cudnn/measure.hpp"
#include "cudnn/values.hpp"

namespace mucudnn {
namespace {

// A GPU starts two of these runs from rest, which delays them.
constexpr int kRuns = 5;
constexpr double kBudgetMs = 50;
constexpr double kHopeless = 2;  // times the fastest algorithm of the same micro-batch size

class Memory {
 public:
  Memory(Device& device, std::size_t size) : device_(device), size_(size), data_(device.allocate(size)) {}
  ~Memory() { device_.release(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Repeats one block of random values: the time does not depend on how many different values there are.
  void fill(DataType type) {
    std::vector<char> block(std::min(size_, std::size_t{1} << 20));
    fill_random(type, block.data(), block.size() / size_of(type), 1);
    device_.copy_from_host(data(), block.data(), block.size());
    for (std::size_t done = block.size(); done < size_;) {
      const std::size_t width = std::min(block.size(), size_ - done);
      const std::size_t count = std::min(done, size_ - done) / width;
      device_.copy_pieces(data() + done, width, data(), width, width, count, device_.stream());
      done += count * width;
    }
  }

  char* data() const { return static_cast<char*>(data_); }
  std::size_t size() const { return size_; }

 private:
  Device& device_;
  std::size_t size_;
  void* data_;
};

// Returns the size of the mini-batch's tensors, enlarged by samples until slices do not stay in the caches.
Extent measuring_extent(const Device& device, const Problem& problem, std::size_t cap) {
  const Extent one = extent_of(problem.with_mini_batch(1));
  const auto enough = static_cast<std::int64_t>(device.bytes_beyond_caches() / (one.x + one.y) + 1);
  const Extent wide = extent_of(problem.with_mini_batch(std::max(problem.mini_batch, enough)));
  return wide.total() <= cap ? wide : extent_of(problem);
}

struct Needs {
  Extent tensors;
  std::size_t workspace;
};

// Keeps within half of the available memory and leaves out tasks that need more. Throws std::bad_alloc if the
// tensors alone do not fit.
Needs needs_of(Device& device, const Problem& problem, const std::vector<Task>& tasks) {
  const std::size_t cap = device.available() / 2;
  Needs needs{measuring_extent(device, problem, cap), 0};
  if (needs.tensors.total() > cap) throw std::bad_alloc();
  for (const Task& task : tasks) {
    if (task.workspace <= cap - needs.tensors.total())
      needs.workspace = std::max(needs.workspace, task.workspace);
  }
  return needs;
}

}  // namespace

std::size_t memory_to_measure(Device& device, const Problem& problem, const std::vector<Task>& tasks) {
  const Needs needs = needs_of(device, problem, tasks);
  return needs.tensors.total() + needs.workspace;
}

bool any_fits_memory(Device& device, const Problem& problem, const std::vector<Task>& tasks) {
  const std::size_t cap = device.available() / 2;
  const std::size_t tensors = measuring_extent(device, problem, cap).total();
  return std::any_of(tasks.begin(), tasks.end(),
                     [&](const Task& task) { return tensors <= cap && task.workspace <= cap - tensors; });
}

Survey measure_all(Engine& engine, Device& device, const Kernel& kernel, const std::vector<Task>& tasks) {
  const Problem& problem = kernel.problem;
  const auto [extent, most] = needs_of(device, problem, tasks);
  std::deque<Memory> memories;
  const auto random = [&](std::size_t size) {
    Memory& tensor = memories.emplace_back(device, size);
    tensor.fill(problem.data_type);
    return tensor.data();
  };
  Region region{{random(extent.x), random(extent.w), random(extent.y)}, extent};
  for (std::size_t i = 0; i < extent.operands.size(); ++i) {
    if (extent.operands[i] > 0) region.tensors.operands[i] = random(extent.operands[i]);
  }
  const Memory workspace(device, most);
  Survey survey;
  std::map<std::int64_t, double> fastest;
  for (const Task& task : tasks) {
    if (task.workspace > most) continue;
    double& best =
        fastest.try_emplace(task.micro_batch, std::numeric_limits<double>::infinity()).first->second;
    try {
      std::vector<double> times =
          measure(engine, device, kernel.with_mini_batch(task.micro_batch), task.algorithm, region,
                  {workspace.data(), task.workspace}, kRuns, kBudgetMs, kHopeless * best);
      std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                       times.end());
      const double median = times[times.size() / 2];
      best = std::min(best, median);
      survey.measured.push_back(
          {task.micro_batch, task.algorithm, median, static_cast<std::int64_t>(task.workspace)});
    } catch (const EngineError&) {
      // The library listed the algorithm as able to run, but it failed.
      survey.failed.push_back(task);
    }
  }
  return survey;
}

}  // namespace mucudnn
