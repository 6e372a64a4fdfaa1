// Decides how kernels run: from the plan, from earlier measurements, or by measuring now.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>

#include "core/options.hpp"
#include "cudnn/device.hpp"
#include "cudnn/engine.hpp"
#include "cudnn/library.hpp"
#include "shim/decisions/known_kernel.hpp"
#include "shim/decisions/measurements.hpp"

namespace mucudnn::shim {

class Decider {
 public:
  // Makes a decider for the current device. Adds the journal of this machine to `journals` if it is not
  // there. Throws EngineError, in particular if the plan does not fit this process.
  Decider(const Options& options, std::shared_ptr<const Library> library, Journals& journals);

  const Device& device() const { return *device_; }

  // Decides about one kernel. The handle belongs to the calling thread, and this decider's device is current.
  // Slices in `refused` are not used; slices that cannot be prepared now are added to it. The caller's own
  // algorithm `own` is measured too, unless it is null. Returns null if a decision needs a measurement and
  // `may_measure` is false. Throws EngineError and std::bad_alloc.
  std::unique_ptr<const KnownKernel> decide(cudnnHandle_t handle, const Kernel& kernel, Api api,
                                            bool may_measure, std::vector<Slice>& refused, const Listed* own);

  // Prepares the choice's slices, and replaces its workspace by the library's figure. Any number of threads
  // may use the result. Never call it during an execution: it may plan. Throws EngineError; a SliceRefused
  // names the slice that cannot be prepared.
  void make_ready(cudnnHandle_t handle, const Kernel& kernel, Api api, PreparedChoice& choice) const;

  // Prepares slices of `size` samples and a smaller last one. Returns nothing if they cannot run. Nothing is
  // measured.
  std::optional<PreparedChoice> prepare_slices(cudnnHandle_t handle, const Kernel& kernel, Api api,
                                               const std::string& algorithm, std::int64_t size) const;
  // Returns the algorithms that may replace any other one in a rescue: they run the kernel within `workspace`
  // bytes, are deterministic, and comply with the option `strict`. Throws EngineError.
  std::vector<std::string> replacements(cudnnHandle_t handle, const Kernel& kernel, Api api,
                                        std::int64_t workspace) const;

  // Resets the mutexes in a child of fork(), in which no thread is measuring.
  void restart_in_child() noexcept;

 private:
  using Permissions = KnownKernel::Permissions;

  void read_plan();
  std::unique_ptr<Engine> make_engine(Api api, cudnnHandle_t handle) const;
  // Divides a kernel into its samples, all run by one algorithm that follows from the kernel without its
  // mini-batch. Nothing is measured.
  std::unique_ptr<const KnownKernel> divide_into_samples(Engine& engine, const Kernel& kernel, Api api,
                                                         std::vector<Slice>& refused) const;
  std::unique_ptr<const KnownKernel> follow_plan(Engine& engine, const Kernel& kernel, Api api,
                                                 const PlanKernel& plan, std::vector<Slice>& refused) const;
  // Returns the choices that can be prepared, and warns about the others.
  std::vector<PreparedChoice> prepare_each(Engine& engine, const Kernel& kernel,
                                           std::vector<PreparedChoice> choices,
                                           std::vector<Slice>& refused) const;
  void make_ready(Engine& engine, const Kernel& kernel, PreparedChoice& choice) const;
  // Returns the permission for each legacy algorithm. `undivided` lists the algorithms that can run the whole
  // mini-batch. `planned` is the workspace of the plan's choices; it is negative if there is no plan.
  Permissions permissions(Pass pass, const std::vector<Listed>& undivided, std::int64_t planned) const;

  const Options& options_;
  std::shared_ptr<const Library> library_;
  Journal::Identity identity_;
  std::unique_ptr<Device> device_;
  std::unordered_map<Kernel, PlanKernel> plan_;
  std::optional<Measurements> measurements_;  // only in mode online
};

}  // namespace mucudnn::shim
