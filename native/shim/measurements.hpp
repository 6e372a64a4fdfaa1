// What the algorithms of kernels take: as earlier processes measured it, or measured now.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/options.hpp"
#include "cudnn/device.hpp"
#include "cudnn/engine.hpp"
#include "cudnn/library.hpp"
#include "cudnn/survey.hpp"
#include "shim/journal.hpp"
#include "shim/measured_kernel.hpp"

namespace mucudnn::shim {

// What can run, in the order in which it was enumerated.
std::vector<Listed> list(const Enumeration& enumeration);

class Measurements {
 public:
  // `identity` says whose times they are. The device outlives it.
  Measurements(const Options& options, std::shared_ptr<const Library> library, Device& device,
               std::map<std::string, std::string> identity);

  // At the micro-batch sizes of the policy, of what the limit and the numerics leave. The engine is asked for
  // what no journal has. Nothing where times are missing and may not be measured. Throws EngineError and
  // std::bad_alloc.
  std::optional<std::vector<Measured>> of(Engine& engine, const Problem& problem, Pass pass, Api api,
                                          bool may_measure);

  // The list of the mini-batch itself, after of().
  const std::vector<Listed>& whole(const Problem& problem, Pass pass, Api api);

 private:
  bool is_allowed(const Listed& candidate) const;
  void measure(const Problem& problem, Pass pass, Api api, const std::vector<Task>& tasks,
               Journal::Sizes& known, Journal::Sizes& news);

  const Options& options_;
  std::shared_ptr<const Library> library_;
  Device& device_;
  Journal journal_;
  std::unique_ptr<Engine> engine_;  // to measure with, on a handle and a stream of its own
};

}  // namespace mucudnn::shim
