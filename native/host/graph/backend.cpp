// The functions of the graph API.
#include "abi/cudnn_backend.h"

#include "host/graph/plans.hpp"

namespace mucudnn::host::graph {
namespace {

template <typename Kind, auto... arguments>
std::shared_ptr<Descriptor> make() {
  return std::make_shared<Kind>(arguments...);
}

struct DescriptorKind {
  cudnnBackendDescriptorType_t type;
  std::shared_ptr<Descriptor> (*make)();
};

constexpr DescriptorKind kKinds[] = {
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, make<Tensor>},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, make<Convolution>},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, make<Pointwise>},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, make<ConvolutionOperation, Pass::forward>},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
     make<ConvolutionOperation, Pass::backward_data>},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
     make<ConvolutionOperation, Pass::backward_filter>},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, make<PointwiseOperation>},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, make<OperationGraph>},
    {CUDNN_BACKEND_ENGINE_DESCRIPTOR, make<Engine>},
    {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, make<EngineConfig>},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, make<Heuristics>},
    {CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR, make<KnobInfo>},
    {CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, make<KnobChoice>},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, make<ExecutionPlan>},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, make<VariantPack>},
};

std::shared_ptr<Descriptor> make(cudnnBackendDescriptorType_t type) {
  for (const DescriptorKind& kind : kKinds) {
    if (kind.type == type) return kind.make();
  }
  not_supported("the host engine has no descriptors of type ", type);
}

Handle& handle_of(cudnnBackendDescriptor_t descriptor,
                  cudnnStatus_t null = CUDNN_STATUS_BAD_PARAM_NULL_POINTER) {
  if (descriptor == nullptr) throw Failure(null, "the descriptor is NULL");
  return *static_cast<Handle*>(descriptor);
}

void access(Descriptor& descriptor, Access access) {
  descriptor.attributes(access);
  if (!access.is_served()) bad_parameter("the descriptor has no such attribute");
}

// Returns the finalized execution plan. Throws Failure if a pointer is NULL or the plan is not finalized.
std::shared_ptr<ExecutionPlan> plan_of(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                       cudnnBackendDescriptor_t pack) {
  require("handle, the execution plan, the variant pack", {handle, plan, pack});
  return finalized<ExecutionPlan>(plan, CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
}

cudnnStatus_t refuse_cuda_graph(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                cudnnBackendDescriptor_t pack) {
  return guarded([&] {
    plan_of(handle, plan, pack);
    throw Failure(CUDNN_STATUS_NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API, "the host engine has no CUDA graphs");
  });
}

}  // namespace
}  // namespace mucudnn::host::graph

using namespace mucudnn::host;

extern "C" {

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  return guarded([&] {
    if (descriptor == nullptr) throw Failure(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "the descriptor is NULL");
    *descriptor = nullptr;
    *descriptor = new graph::Handle{type, graph::make(type)};
  });
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  return guarded([&] { delete &graph::handle_of(descriptor); });
}

cudnnStatus_t cudnnBackendInitialize(cudnnBackendDescriptor_t descriptor) {
  return guarded([&] {
    graph::Handle& handle = graph::handle_of(descriptor, CUDNN_STATUS_BAD_PARAM);
    handle.descriptor = graph::make(handle.type);
  });
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  return guarded([&] { graph::handle_of(descriptor).descriptor->finalize(); });
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* elements) {
  return guarded([&] {
    graph::Descriptor& object = *graph::handle_of(descriptor).descriptor;
    require("the elements", {elements});
    if (object.is_finalized()) bad_parameter("the descriptor is finalized: it cannot be changed");
    graph::access(object, {true, name, type, count, nullptr, const_cast<void*>(elements)});
  });
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested, int64_t* count,
                                       void* elements) {
  return guarded([&] {
    graph::Descriptor& object = *graph::handle_of(descriptor, CUDNN_STATUS_BAD_PARAM).descriptor;
    if (!object.is_finalized())
      throw Failure(CUDNN_STATUS_NOT_INITIALIZED, "the descriptor is not finalized");
    graph::access(object, {false, name, type, requested, count, elements});
  });
}

cudnnStatus_t cudnnGetExecutionPlanWorkspaceSize(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                                 cudnnBackendDescriptor_t variant_pack, size_t* size) {
  return guarded([&] {
    require("size", {size});
    *size = graph::plan_of(handle, plan, variant_pack)->workspace();
  });
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t variant_pack) {
  return guarded([&] {
    const auto prepared = graph::plan_of(handle, plan, variant_pack);
    prepared->execute(
        *graph::finalized<graph::VariantPack>(variant_pack, CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED));
  });
}

cudnnStatus_t cudnnBackendPopulateCudaGraph(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                            cudnnBackendDescriptor_t variant_pack, cudaGraph_t) {
  return graph::refuse_cuda_graph(handle, plan, variant_pack);
}

cudnnStatus_t cudnnBackendUpdateCudaGraph(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                          cudnnBackendDescriptor_t variant_pack, cudaGraph_t) {
  return graph::refuse_cuda_graph(handle, plan, variant_pack);
}

}  // extern "C"
