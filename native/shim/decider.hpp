// Makes kernels known: from the plan, from what was measured before, or by measuring.
#pragma once

#include <memory>
#include <optional>

#include "core/options.hpp"
#include "cudnn/device.hpp"
#include "cudnn/engine.hpp"
#include "cudnn/library.hpp"
#include "shim/journal.hpp"
#include "shim/known_kernel.hpp"

namespace mucudnn::shim {

class Decider {
 public:
  // Throws EngineError, in particular where the plan cannot be followed in this process.
  Decider(const Options& options, std::shared_ptr<const Library> library);

  const Device& device() const { return *device_; }

  // One thread at a time, on its handle, with the device current that was so when this was made. Null where
  // nothing is known without measuring, which is then not allowed. Throws EngineError and std::bad_alloc.
  std::unique_ptr<const KnownKernel> decide(cudnnHandle_t handle, const Problem& problem, Pass pass, Api api,
                                            bool may_measure);

  // What can compute a kernel in so many bytes of workspace, made ready: the algorithm of this name first.
  std::vector<std::unique_ptr<PreparedKernel>> runnable(cudnnHandle_t handle, const Problem& problem,
                                                        Pass pass, Api api, const std::string& first,
                                                        std::size_t workspace) const;

 private:
  // The algorithms at each micro-batch size, as the library describes them.
  using Candidates = std::map<std::int64_t, std::vector<Candidate>>;

  void read_plan();
  bool is_capturing(cudnnHandle_t handle) const;
  bool is_allowed(const Candidate& candidate) const;
  const PlanKernel* planned(const Problem& problem, Pass pass) const;
  std::optional<std::vector<MicroConfiguration>> measured(const Problem& problem, Pass pass,
                                                          const Candidates& candidates, bool may_measure);
  std::unique_ptr<const KnownKernel> make_known(Engine& engine, const Problem& problem, Pass pass, Api api,
                                                const Candidates& candidates,
                                                const std::vector<Configuration>& configurations,
                                                const Configuration* preferred);

  const Options& options_;
  std::shared_ptr<const Library> library_;
  std::map<std::string, std::string> identity_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Engine> measuring_;  // with a handle and a stream of its own
  std::map<std::pair<std::string, Pass>, PlanKernel> plan_;
  std::optional<Journal> journal_;
};

}  // namespace mucudnn::shim
