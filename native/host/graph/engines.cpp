#include "host/graph/engines.hpp"

#include <utility>

#include "host/abi/execution.hpp"

namespace mucudnn::host::graph {
namespace {

std::vector<cudnnBackendNumericalNote_t> notes_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::winograd_nonfused:
      return {CUDNN_NUMERICAL_NOTE_WINOGRAD, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4};
    case Algorithm::fft_tiling:
      return {CUDNN_NUMERICAL_NOTE_FFT};
    default:
      return {};
  }
}

void check_processors(std::int32_t count) {
  if (count < 0) bad_parameter("a target of ", count, " multiprocessors");
}

// Throws Failure, BAD_PARAM, if a knob is chosen twice.
void check_distinct(const std::vector<std::shared_ptr<KnobChoice>>& choices) {
  for (auto choice = choices.begin(); choice != choices.end(); ++choice) {
    if (std::any_of(choices.begin(), choice,
                    [&](const auto& other) { return other->type == (*choice)->type; }))
      bad_parameter("the knob of type ", (*choice)->type, " is chosen twice");
  }
}

}  // namespace

void Engine::attributes(Access& access) {
  access.descriptor(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph);
  access.value(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, index);
  access.value(CUDNN_ATTR_ENGINE_SM_COUNT_TARGET, processors_);
  access.results(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, notes_of(algorithm_));
  access.results<cudnnBackendBehaviorNote_t>(CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, {});
  access.descriptor_results(CUDNN_ATTR_ENGINE_KNOB_INFO, knobs_);
  access.descriptor_results<Descriptor>(CUDNN_ATTR_ENGINE_LAYOUT_INFO, {});
  access.refuse(CUDNN_ATTR_ENGINE_DEVICEPROP);
}

void Engine::complete() {
  if (!graph) throw Failure(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "an engine needs its graph, finalized");
  check_processors(processors_);
  if (processors_ > 0) not_supported("the host engine has no multiprocessors to count");
  const Fusion& fusion = graph->fusion();
  const auto algorithm = engine_algorithm(fusion.kernel.pass, index);
  required_workspace(algorithm, fusion.kernel);
  algorithm_ = *algorithm;
  if (has_tile_size()) knobs_ = {graph::complete(std::make_shared<KnobInfo>(true))};
}

void KnobInfo::attributes(Access& access) {
  access.result(CUDNN_ATTR_KNOB_INFO_TYPE, CUDNN_KNOB_TYPE_TILE_SIZE);
  access.result(CUDNN_ATTR_KNOB_INFO_MINIMUM_VALUE, std::int64_t{0});
  access.result(CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE, std::int64_t{kMostTileSize});
  access.result(CUDNN_ATTR_KNOB_INFO_STRIDE, std::int64_t{1});
}

void KnobInfo::complete() {
  if (!is_tile_size_) bad_parameter("an engine fills in what its knobs are");
}

void KnobChoice::attributes(Access& access) {
  access.value(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, type);
  access.value(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, value);
}

Variant EngineConfig::variant() const {
  const std::int64_t tile_size = choices.empty() ? kUnchosen : choices.front()->value;
  return {engine->algorithm(), static_cast<int>(std::max<std::int64_t>(0, tile_size))};
}

void EngineConfig::attributes(Access& access) {
  access.descriptor(CUDNN_ATTR_ENGINECFG_ENGINE, engine);
  access.refuse(CUDNN_ATTR_ENGINECFG_INTERMEDIATE_INFO);
  access.refuse(CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED);
  access.result(CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, static_cast<std::int64_t>(workspace_));
  if (access.about(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES)) access.answer_wrong_types(CUDNN_STATUS_BAD_PARAM);
  auto chosen = choices;
  access.descriptors(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, chosen, CUDNN_STATUS_NOT_INITIALIZED,
                     CUDNN_STATUS_BAD_PARAM);
  check_distinct(chosen);
  choices = std::move(chosen);
}

void EngineConfig::complete() {
  if (!engine)
    throw Failure(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "a configuration needs its engine, finalized");
  for (const auto& choice : choices) {
    const std::string knob = joined("a knob of type ", choice->type);
    if (!engine->has_tile_size() || choice->type != CUDNN_KNOB_TYPE_TILE_SIZE)
      not_supported("the engine does not have ", knob);
    if (choice->value < kUnchosen || choice->value > kMostTileSize)
      not_supported(knob, " at ", choice->value);
  }
  const Fusion& fusion = engine->graph->fusion();
  workspace_ = required_workspace(variant(), fusion.kernel) + fusion.copies_size();
}

void Heuristics::attributes(Access& access) {
  access.descriptor(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph_);
  access.value(CUDNN_ATTR_ENGINEHEUR_MODE, mode_);
  access.value(CUDNN_ATTR_ENGINEHEUR_SM_COUNT_TARGET, processors_);
  access.descriptor_results(CUDNN_ATTR_ENGINEHEUR_RESULTS, results_);
  access.refuse(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
}

// Lists the configurations that can run, by their estimated cost. An engine with a knob appears with the
// largest and with the smallest tiles. The fallback lists only configurations without workspace.
void Heuristics::complete() {
  if (!graph_) bad_parameter("heuristics need their graph, finalized");
  check_processors(processors_);
  const Fusion& fusion = graph_->fusion();
  if (mode_ >= CUDNN_HEUR_MODES_COUNT) return;
  for (std::int64_t index = 0; index < algorithm_count(fusion.kernel.pass); ++index) {
    const auto engine = std::make_shared<Engine>();
    engine->graph = graph_;
    engine->index = index;
    try {
      engine->finalize();
    } catch (const Failure&) {
      continue;
    }
    std::vector<std::int64_t> tile_sizes{kUnchosen};
    if (engine->has_tile_size()) tile_sizes = {0, kMostTileSize};
    for (const std::int64_t tile_size : tile_sizes) {
      const auto config = std::make_shared<EngineConfig>();
      config->engine = engine;
      if (tile_size != kUnchosen) {
        const auto choice = std::make_shared<KnobChoice>();
        choice->type = CUDNN_KNOB_TYPE_TILE_SIZE;
        choice->value = tile_size;
        config->choices = {graph::complete(choice)};
      }
      config->finalize();
      if (mode_ != CUDNN_HEUR_MODE_FALLBACK || config->workspace() == 0) results_.push_back(config);
    }
  }
  const auto cost = [&](const std::shared_ptr<EngineConfig>& config) {
    return estimated_cost(config->engine->algorithm(), fusion.kernel);
  };
  std::stable_sort(results_.begin(), results_.end(),
                   [&](const auto& a, const auto& b) { return cost(a) < cost(b); });
}

}  // namespace mucudnn::host::graph
