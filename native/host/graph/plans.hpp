// Descriptors of execution plans and of the memory that they run on.
#pragma once

#include "host/graph/engines.hpp"

#include <cstdint>

namespace mucudnn::host::graph {

class VariantPack : public Descriptor {
 public:
  void* workspace = nullptr;

  // Returns the address of a tensor in the program's memory. Throws Failure, BAD_PARAM, if the program gives
  // no address, or one that is not aligned to the data type.
  void* address_of(std::int64_t uid, cudnnDataType_t type) const;

  void attributes(Access& access) override;
  void complete() override;

 private:
  std::vector<std::int64_t> uids_;
  std::vector<void*> pointers_;
};

class ExecutionPlan : public Descriptor {
 public:
  std::size_t workspace() const { return config_->workspace(); }

  // Runs the plan and returns when it is done. Throws Failure before anything is written.
  void execute(const VariantPack& pack) const;

  void attributes(Access& access) override;
  void complete() override;

 private:
  cudnnHandle_t handle_ = nullptr;
  std::shared_ptr<EngineConfig> config_;
};

}  // namespace mucudnn::host::graph
