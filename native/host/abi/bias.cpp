// Bias: added to an output, added together with an activation in the call that convolves, and its gradient.
#include <cstring>

#include "core/half.hpp"
#include "host/abi/execution.hpp"
#include "host/parallel.hpp"

namespace mucudnn::host {
namespace {

double load(float value) { return value; }
double load(double value) { return value; }
double load(Half value) { return to_float(value); }
double load(BFloat16 value) { return to_float(value); }

void store(double value, float& to) { to = static_cast<float>(value); }
void store(double value, double& to) { to = value; }
void store(double value, Half& to) { to = to_half(static_cast<float>(value)); }
void store(double value, BFloat16& to) { to = to_bfloat16(static_cast<float>(value)); }

// Calls body with a value of the type that is stored.
template <typename Body>
void with_type(cudnnDataType_t type, const Body& body) {
  switch (type) {
    case CUDNN_DATA_FLOAT:
      return body(float{});
    case CUDNN_DATA_DOUBLE:
      return body(double{});
    case CUDNN_DATA_HALF:
      return body(Half{});
    case CUDNN_DATA_BFLOAT16:
      return body(BFloat16{});
    default:
      not_supported("the host engine adds float, double, half and bfloat16 only");
  }
}

// A part is added to a whole: each of its sizes is that of the whole, or 1 and stretched over it.
void check_stretches(const cudnnTensorStruct& part, const cudnnTensorStruct& whole) {
  if (whole.dims == 0 || part.dims != whole.dims) {
    bad_parameter("a bias of " + std::to_string(part.dims) + " dimensions for a tensor of " +
                  std::to_string(whole.dims));
  }
  if (part.type != whole.type) bad_parameter("the bias and the tensor differ in their data types");
  for (int axis = 0; axis < whole.dims; ++axis) {
    if (part.sizes[axis] == 1 || part.sizes[axis] == whole.sizes[axis]) continue;
    bad_parameter("dimension " + std::to_string(axis) + " of the bias has size " +
                  std::to_string(part.sizes[axis]) + ", that of the tensor " +
                  std::to_string(whole.sizes[axis]));
  }
}

std::int64_t rows_of(const cudnnTensorStruct& tensor) {
  std::int64_t rows = 1;
  for (int axis = 0; axis < tensor.dims - 1; ++axis) rows *= tensor.sizes[axis];
  return rows;
}

// Calls body(offset in the part, offset in the whole) for each element of these rows of the whole.
template <typename Body>
void walk(const cudnnTensorStruct& part, const cudnnTensorStruct& whole, std::int64_t begin, std::int64_t end,
          const Body& body) {
  const int last = whole.dims - 1;
  std::array<std::int64_t, CUDNN_DIM_MAX> part_strides{};
  for (int axis = 0; axis <= last; ++axis) {
    part_strides[axis] = part.sizes[axis] == 1 ? 0 : part.strides[axis];
  }
  for (std::int64_t row = begin; row < end; ++row) {
    std::int64_t in_part = 0, in_whole = 0, rest = row;
    for (int axis = last - 1; axis >= 0; --axis) {
      const std::int64_t index = rest % whole.sizes[axis];
      rest /= whole.sizes[axis];
      in_part += index * part_strides[axis];
      in_whole += index * whole.strides[axis];
    }
    for (int i = 0; i < whole.sizes[last]; ++i) {
      body(in_part, in_whole);
      in_part += part_strides[last];
      in_whole += whole.strides[last];
    }
  }
}

// The same for the whole of the whole, on several threads.
template <typename Body>
void for_each_pair(const cudnnTensorStruct& part, const cudnnTensorStruct& whole, const Body& body) {
  parallel_for(rows_of(whole),
               [&](std::int64_t begin, std::int64_t end) { walk(part, whole, begin, end, body); });
}

// The limits that cuDNN documents for its fused call. One of them is not kept: there, IDENTITY runs with
// IMPLICIT_PRECOMP_GEMM only, which the host engine does not have.
void check_fused(const cudnnActivationStruct& activation, const cudnnTensorStruct& bias,
                 const cudnnTensorStruct& z, const cudnnTensorStruct& y) {
  if (activation.mode != CUDNN_ACTIVATION_RELU && activation.mode != CUDNN_ACTIVATION_IDENTITY) {
    not_supported("the activation of this call is RELU or IDENTITY");
  }
  if (activation.relu_nan != CUDNN_NOT_PROPAGATE_NAN) {
    not_supported("the activation of this call does not propagate NaN");
  }
  bool per_channel = bias.dims == y.dims && bias.type == y.type && bias.strides[1] == 1;
  bool same = z.dims == y.dims && z.type == y.type;
  for (int axis = 0; axis < y.dims; ++axis) {
    per_channel = per_channel && bias.sizes[axis] == (axis == 1 ? y.sizes[axis] : 1);
    same =
        same && z.sizes[axis] == y.sizes[axis] && (z.sizes[axis] == 1 || z.strides[axis] == y.strides[axis]);
  }
  if (!per_channel)
    not_supported("the bias must be packed, with y's data type and channels and nothing else");
  if (!same) not_supported("z must have the data type, the sizes and the strides of y");
}

}  // namespace
}  // namespace mucudnn::host

using namespace mucudnn::host;
using mucudnn::Pass;

extern "C" {

cudnnStatus_t cudnnConvolutionBiasActivationForward(
    cudnnHandle_t handle, const void* alpha1, cudnnTensorDescriptor_t x_descriptor, const void* x,
    cudnnFilterDescriptor_t w_descriptor, const void* w, cudnnConvolutionDescriptor_t convolution,
    cudnnConvolutionFwdAlgo_t algorithm, void* workspace, size_t workspace_size, const void* alpha2,
    cudnnTensorDescriptor_t z_descriptor, const void* z, cudnnTensorDescriptor_t bias_descriptor,
    const void* bias, cudnnActivationDescriptor_t activation, cudnnTensorDescriptor_t y_descriptor, void* y) {
  return guarded([&] {
    require({{"handle", handle},
             {"alpha1", alpha1},
             {"the data of x", x},
             {"the data of w", w},
             {"alpha2", alpha2},
             {"the descriptor of z", z_descriptor},
             {"the data of z", z},
             {"the descriptor of the bias", bias_descriptor},
             {"the data of the bias", bias},
             {"the activation descriptor", activation},
             {"the data of y", y}});
    const mucudnn::Problem problem = problem_of({x_descriptor, w_descriptor, convolution, y_descriptor});
    check_fused(*activation, *bias_descriptor, *z_descriptor, *y_descriptor);
    const auto chosen = engine_algorithm<Pass::forward>(algorithm);
    void* const scratch = usable_workspace(chosen, Pass::forward, problem, workspace, workspace_size);

    const cudnnDataType_t type = y_descriptor->type;
    const double z_scale = scale_of(alpha2, type);
    if (z_scale != 0 && z != y) {
      std::memcpy(y, z, static_cast<size_t>(problem.mini_batch * problem.y_sample()) * size_of(type));
    }
    convolve(*chosen, Pass::forward, problem, {input(x), input(w), y}, scale_of(alpha1, type), z_scale,
             scratch);
    const bool relu = activation->mode == CUDNN_ACTIVATION_RELU;
    with_type(type, [&](auto stored) {
      using Type = decltype(stored);
      for_each_pair(*bias_descriptor, *y_descriptor, [&](std::int64_t from, std::int64_t to) {
        Type& value = static_cast<Type*>(y)[to];
        const double sum = load(value) + load(static_cast<const Type*>(bias)[from]);
        store(relu && !(sum > 0) ? 0 : sum, value);
      });
    });
  });
}

cudnnStatus_t cudnnConvolutionBackwardBias(cudnnHandle_t handle, const void* alpha,
                                           cudnnTensorDescriptor_t dy_descriptor, const void* dy,
                                           const void* beta, cudnnTensorDescriptor_t db_descriptor,
                                           void* db) {
  return guarded([&] {
    require({{"handle", handle},
             {"alpha", alpha},
             {"the descriptor of dy", dy_descriptor},
             {"the data of dy", dy},
             {"beta", beta},
             {"the descriptor of db", db_descriptor},
             {"the data of db", db}});
    check_stretches(*db_descriptor, *dy_descriptor);
    for (int axis = 0; axis < db_descriptor->dims; ++axis) {
      const int expected = axis == 1 ? dy_descriptor->sizes[1] : 1;
      if (db_descriptor->sizes[axis] != expected)
        bad_parameter("db must have the channels of dy, and no more");
    }
    const cudnnDataType_t type = dy_descriptor->type;
    const double scale = scale_of(alpha, type), keep = scale_of(beta, type);
    cudnnTensorStruct channel = *dy_descriptor;
    channel.sizes[1] = 1;
    cudnnTensorStruct sum_of_channel = channel;
    sum_of_channel.sizes.fill(1);
    with_type(type, [&](auto stored) {
      using Type = decltype(stored);
      parallel_for(dy_descriptor->sizes[1], [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t c = begin; c < end; ++c) {
          const Type* const from = static_cast<const Type*>(dy) + c * dy_descriptor->strides[1];
          Type& to = static_cast<Type*>(db)[c * db_descriptor->strides[1]];
          double sum = 0;
          walk(sum_of_channel, channel, 0, rows_of(channel),
               [&](std::int64_t, std::int64_t at) { sum += load(from[at]); });
          store(scale * sum + (keep == 0 ? 0 : keep * load(to)), to);
        }
      });
    });
  });
}

cudnnStatus_t cudnnAddTensor(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t a_descriptor,
                             const void* a, const void* beta, cudnnTensorDescriptor_t c_descriptor, void* c) {
  return guarded([&] {
    require({{"handle", handle},
             {"alpha", alpha},
             {"the descriptor of a", a_descriptor},
             {"the data of a", a},
             {"beta", beta},
             {"the descriptor of c", c_descriptor},
             {"the data of c", c}});
    check_stretches(*a_descriptor, *c_descriptor);
    const cudnnDataType_t type = c_descriptor->type;
    const double scale = scale_of(alpha, type), keep = scale_of(beta, type);
    with_type(type, [&](auto stored) {
      using Type = decltype(stored);
      for_each_pair(*a_descriptor, *c_descriptor, [&](std::int64_t from, std::int64_t to) {
        Type& value = static_cast<Type*>(c)[to];
        const double addend = scale * load(static_cast<const Type*>(a)[from]);
        store(keep == 0 ? addend : addend + keep * load(value), value);
      });
    });
  });
}

}  // extern "C"
