#include "host/graph/plans.hpp"

#include <memory>

#include "core/scratch.hpp"
#include "host/abi/execution.hpp"

namespace mucudnn::host::graph {

void* VariantPack::address_of(std::int64_t uid, cudnnDataType_t type) const {
  const auto place = std::find(uids_.begin(), uids_.end(), uid);
  void* const address =
      place == uids_.end() ? nullptr : pointers_[static_cast<std::size_t>(place - uids_.begin())];
  if (address == nullptr) bad_parameter("the variant pack has no address for tensor ", uid);
  if (reinterpret_cast<std::uintptr_t>(address) % size_of(type) != 0) {
    throw Failure(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER,
                  joined("the address of tensor ", uid, " does not suit its data type"));
  }
  return address;
}

void VariantPack::attributes(Access& access) {
  access.answer_wrong_types(CUDNN_STATUS_NOT_SUPPORTED);
  access.value(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, workspace);
  access.refuse(CUDNN_ATTR_VARIANT_PACK_INTERMEDIATES);
  access.only_set();
  access.values(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, uids_);
  access.values(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, pointers_);
}

void VariantPack::complete() {
  if (uids_.size() == pointers_.size()) return;
  bad_parameter(uids_.size(), " unique ids for ", pointers_.size(), " addresses");
}

void ExecutionPlan::attributes(Access& access) {
  access.value(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, handle_);
  access.descriptor(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config_);
  access.refuse(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
  access.refuse(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION);
  access.result(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                static_cast<std::int64_t>(config_ ? workspace() : 0));
}

void ExecutionPlan::complete() {
  if (!config_) {
    throw Failure(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "a plan needs its engine configuration, finalized");
  }
}

void ExecutionPlan::execute(const VariantPack& pack) const {
  const Fusion& fusion = config_->engine->graph->fusion();
  const Variant variant = config_->variant();
  const cudnnDataType_t type = fusion.output.type;
  const std::size_t rest = workspace() - fusion.copies_size();
  void* const scratch = usable_workspace(variant, fusion.kernel, {pack.workspace, rest});
  if (!fusion.copies.empty()) require("workspace", {pack.workspace});
  void* next = static_cast<char*>(pack.workspace) + rest;
  std::size_t room = fusion.copies_size();
  // Returns the address of x, w or y, or of its copy.
  const auto usable = [&](std::size_t tensor) {
    const std::int64_t uid = fusion.uids[tensor];
    const auto copy = std::find_if(fusion.copies.begin(), fusion.copies.end(),
                                   [&](const Copy& candidate) { return candidate.tensor == tensor; });
    if (copy == fusion.copies.end()) return pack.address_of(uid, type);
    const cudnnDataType_t own_type = copy->from.type;
    const void* const from =
        static_cast<const char*>(pack.address_of(uid, own_type)) + copy->first * size_of(own_type);
    void* const to = std::align(kAlignment, copy->size(), next, room);
    next = static_cast<char*>(to) + copy->size();
    room -= copy->size();
    apply({Addition{0, 1, copy->from, from}}, copy->to, to);
    return to;
  };
  const Tensors tensors{usable(0), usable(1), usable(2), fusion.pitch};
  if (fusion.kernel.pass != Pass::forward) {
    return convolve(variant, fusion.kernel, tensors, fusion.alpha, fusion.beta, scratch);
  }
  std::vector<Step> steps = fusion.steps;
  auto operand = fusion.operands.begin();
  for (Step& step : steps) {
    auto* const addition = std::get_if<Addition>(&step);
    if (addition == nullptr) continue;
    addition->data = pack.address_of(*operand++, addition->operand.type);
    if (addition->data == tensors.y) not_supported("a tensor that is added late is the output itself");
  }
  const Residual residual{fusion.beta, pack.address_of(fusion.residual, type)};
  convolve_forward(variant, fusion.kernel, tensors, fusion.alpha, residual, steps, fusion.output, scratch);
}

}  // namespace mucudnn::host::graph
