// Makes kernels known: from the plan, from what was measured before, or by measuring.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "core/options.hpp"
#include "cudnn/device.hpp"
#include "cudnn/engine.hpp"
#include "cudnn/library.hpp"
#include "shim/decisions/known_kernel.hpp"
#include "shim/decisions/measurements.hpp"

namespace mucudnn::shim {

class Decider {
 public:
  // Of the current device, with the journal of its identity, which is made where there is none. Throws
  // EngineError, in particular where the plan cannot be followed in this process.
  Decider(const Options& options, std::shared_ptr<const Library> library, Journals& journals);

  const Device& device() const { return *device_; }

  // On a handle of the thread's, with the device current that was so when this was made. Without what is
  // `refused`, to which is added what cannot be prepared now; measured against the caller's `own` algorithm,
  // unless it is null. Null where nothing is known without measuring, which is then not allowed. Throws
  // EngineError and std::bad_alloc.
  std::unique_ptr<const KnownKernel> decide(cudnnHandle_t handle, const Problem& problem, Pass pass, Api api,
                                            bool may_measure, std::vector<Slice>& refused, const Listed* own);

  // Prepares what the point runs by, for any number of threads at once; its workspace is then the library's
  // own word. Not during an execution: it may plan. Throws EngineError: SliceRefused names what to do
  // without.
  void make_ready(cudnnHandle_t handle, const Problem& problem, Pass pass, Api api, Point& point) const;

  // Prepares what can compute a kernel in so many bytes of workspace, one after the other, until `use`
  // returns true: the algorithm of this name first, and then what the library lists.
  void try_each(cudnnHandle_t handle, const Problem& problem, Pass pass, Api api, const std::string& first,
                std::size_t workspace, const std::function<bool(const PreparedKernel&)>& use) const;

  // In a child of fork(), where nobody measures.
  void restart_in_child() noexcept;

 private:
  using Permissions = KnownKernel::Permissions;

  void read_plan();
  bool is_capturing(cudnnHandle_t handle) const;
  const PlanKernel* planned(const Problem& problem, Pass pass) const;
  std::unique_ptr<const KnownKernel> follow(Engine& engine, const Problem& problem, Pass pass, Api api,
                                            const PlanKernel& plan, std::vector<Slice>& refused) const;
  // Those that can be made ready, after a warning about the others.
  std::vector<Point> ready(Engine& engine, const Problem& problem, Pass pass, std::vector<Point> points,
                           std::vector<Slice>& refused) const;
  void make_ready(Engine& engine, const Problem& problem, Pass pass, Point& point) const;
  // What callers of the legacy API permit: `whole` is what can run the mini-batch undivided.
  Permissions permissions(Pass pass, const std::vector<Listed>& whole, const Point* preferred) const;

  const Options& options_;
  std::shared_ptr<const Library> library_;
  Journal::Identity identity_;
  std::unique_ptr<Device> device_;
  std::map<std::pair<std::string, Pass>, PlanKernel> plan_;
  std::optional<Measurements> measurements_;  // in mode online
};

}  // namespace mucudnn::shim
