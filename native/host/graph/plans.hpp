// Descriptors of execution plans and of the memory that they run on.
#pragma once

#include "host/graph/engines.hpp"

namespace mucudnn::host::graph {

class VariantPack : public Descriptor {
 public:
  void* workspace = nullptr;

  // Where the program keeps a tensor. Throws Failure, BAD_PARAM, where it does not say or the address does
  // not suit the data type.
  void* address_of(std::int64_t uid, cudnnDataType_t type) const;

  void attributes(Access& access) override;

 protected:
  void complete() override;

 private:
  std::vector<std::int64_t> uids_;
  std::vector<void*> pointers_;
};

class ExecutionPlan : public Descriptor {
 public:
  std::size_t workspace() const { return config_->workspace(); }

  // Runs when it is called. Throws Failure before anything is written.
  void execute(const VariantPack& pack) const;

  void attributes(Access& access) override;

 protected:
  void complete() override;

 private:
  void* handle_ = nullptr;
  std::shared_ptr<EngineConfig> config_;
  std::vector<char> json_;  // what to make the configuration from, if set
};

}  // namespace mucudnn::host::graph
