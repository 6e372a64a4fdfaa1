// The engine is above the APIs and the tiles that it lists, so it is not implemented beside its header.
#include "cudnn/engine.hpp"

#include <iterator>

#include "core/tiles.hpp"
#include "cudnn/context.hpp"
#include "cudnn/dividing/tiling.hpp"
#include "cudnn/engines/engine_name.hpp"
#include "cudnn/engines/graph_engine.hpp"
#include "cudnn/engines/legacy_engine.hpp"

namespace mucudnn {

Engine::Engine(std::shared_ptr<const Context> context, Device& device, GraphEngines graph_engines,
               bool has_constant_filters)
    : context_(std::move(context)),
      device_(device),
      graph_engines_(graph_engines),
      has_constant_filters_(has_constant_filters) {}

cudnnHandle_t Engine::handle() const { return context_->handle(); }

bool Engine::has_graph_engines(const Problem& problem) const {
  return graph_engines_ == GraphEngines::for_all || problem.is_fused() || problem.is_mixed();
}

Enumeration Engine::enumerate_whole(const Kernel& kernel) const {
  Enumeration all;
  if (context_->handle() != nullptr) all = enumerate_legacy(*context_, kernel);
  if (!has_graph_engines(kernel.problem)) return all;
  Enumeration engines = enumerate_graph(*context_, kernel);
  std::move(engines.candidates.begin(), engines.candidates.end(), std::back_inserter(all.candidates));
  all.is_complete = all.is_complete && engines.is_complete;
  return all;
}

Enumeration Engine::enumerate(const Kernel& kernel) const {
  Enumeration all = enumerate_whole(kernel);
  std::vector<Candidate> tiles = tiles_of(*this, device_, kernel, all.candidates);
  const Problem& p = kernel.problem;
  for (Candidate& candidate : all.candidates) {
    if (!candidate.is_runnable() || p.is_mixed()) continue;  // mixed kernels have no groups of channels
    try {
      // The library is asked about tensors with twice the kernel's channels.
      if (prepare(kernel, candidate.algorithm, {2 * p.in_channels, 2 * p.out_channels})->workspace() <=
          candidate.workspace)
        candidate.notes.append(candidate.notes.empty() ? "" : " ").append(kStrided);
    } catch (const CallFailed& failure) {
      all.note(failure.code());
    } catch (const EngineError&) {
      // For strided tensors the algorithm computes with other arithmetic, which is not allowed.
    }
  }
  std::move(tiles.begin(), tiles.end(), std::back_inserter(all.candidates));
  return all;
}

std::unique_ptr<PreparedKernel> Engine::prepare(const Kernel& kernel, const std::string& algorithm,
                                                const Pitch& pitch) const {
  if (const auto tiled = parse_tiled(algorithm)) return prepare_tiles(*this, device_, kernel, *tiled, pitch);
  const bool is_engine = has_graph_engines(kernel.problem) && parse_engine_name(algorithm);
  if (is_engine || context_->handle() == nullptr) return prepare_graph(context_, kernel, algorithm, pitch);
  return prepare_legacy(context_, kernel, algorithm, pitch);
}

}  // namespace mucudnn
