#include "shim/decisions/sample_slices.hpp"

#include <algorithm>

#include "core/tiles.hpp"
#include "cudnn/descriptors.hpp"
#include "cudnn/engines/legacy_engine.hpp"
#include "shim/decisions/measurements.hpp"

namespace mucudnn::shim {
namespace {

// Returns the legacy algorithms in the order of the library's heuristics.
std::vector<std::string> ranked(const Library& library, cudnnHandle_t handle, const Kernel& kernel) {
  std::vector<std::string> names;
  if (kernel.problem.is_fused()) return names;
  std::vector<LegacyNotes> notes;
  try {
    const Descriptors descriptors(library, kernel.problem);
    get_notes(library, handle, kernel.pass, descriptors.all(), notes);
  } catch (const CallFailed&) {
    return names;  // the legacy API cannot describe the problem
  }
  for (const LegacyNotes& each : notes) {
    if (const char* const name = legacy_algorithm(kernel.pass, each.algorithm)) names.emplace_back(name);
  }
  return names;
}

}  // namespace

Kernel with_invariant_math(const Kernel& kernel) {
  Kernel plain = kernel;
  if (size_of(plain.problem.data_type) > 2) plain.problem.math = Math::fma;
  return plain;
}

std::vector<std::string> algorithms_of_a_sample(Engine& engine, const Library& library, const Kernel& sample,
                                                const Options& options) {
  std::vector<Listed> all = runnable_algorithms(engine.enumerate(sample));
  std::int64_t least = kNoLimit;
  const auto is_unfit = [&](const Listed& each) {
    return !is_deterministic(each.notes) || is_tiled(each.algorithm) ||
           (options.strict && is_transform(each.algorithm, each.notes));
  };
  all.erase(std::remove_if(all.begin(), all.end(), is_unfit), all.end());
  for (const Listed& each : all) least = std::min(least, each.workspace);
  const std::int64_t limit = options.workspace_limit.value_or(least);
  const std::vector<std::string> order = ranked(library, engine.handle(), sample);
  // Engines of the graph API are listed in the order of their heuristics, behind the legacy algorithms.
  const auto place = [&](const Listed& each) {
    return std::find(order.begin(), order.end(), each.algorithm) - order.begin();
  };
  std::stable_sort(all.begin(), all.end(),
                   [&](const Listed& a, const Listed& b) { return place(a) < place(b); });
  std::vector<std::string> names;
  for (const Listed& each : all) {
    if (each.workspace <= limit) names.push_back(each.algorithm);
  }
  return names;
}

}  // namespace mucudnn::shim
