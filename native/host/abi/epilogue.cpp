#include "host/abi/epilogue.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/element.hpp"
#include "host/threads/parallel.hpp"

namespace mucudnn::host {
namespace {

// The fp64 values that stay in the first-level cache while the steps go over them.
constexpr std::int64_t kStretch = 256;

// Some values of one row of `whole`, with their addresses in any tensor of the same dimensions.
struct Stretch {
  const cudnnTensorStruct& whole;
  std::int64_t row, begin, count;

  std::int64_t stride_in(const cudnnTensorStruct& tensor) const { return step(tensor, whole.dims - 1); }
  std::int64_t offset_in(const cudnnTensorStruct& tensor) const {
    std::int64_t offset = begin * stride_in(tensor), rest = row;
    for (int axis = whole.dims - 2; axis >= 0; --axis) {
      offset += rest % whole.sizes[axis] * step(tensor, axis);
      rest /= whole.sizes[axis];
    }
    return offset;
  }

 private:
  static std::int64_t step(const cudnnTensorStruct& tensor, int axis) {
    return tensor.sizes[axis] == 1 ? 0 : tensor.strides[axis];
  }
};

template <typename Body>
void for_each_stretch(const cudnnTensorStruct& whole, std::int64_t begin, std::int64_t end,
                      const Body& body) {
  const std::int64_t width = whole.sizes[whole.dims - 1];
  for (std::int64_t row = begin; row < end; ++row) {
    for (std::int64_t at = 0; at < width; at += kStretch) {
      body(Stretch{whole, row, at, std::min(kStretch, width - at)});
    }
  }
}

std::int64_t rows_of(const cudnnTensorStruct& tensor) {
  std::int64_t rows = 1;
  for (int axis = 0; axis < tensor.dims - 1; ++axis) rows *= tensor.sizes[axis];
  return rows;
}

void apply(const Addition& add, const Stretch& stretch, double* values) {
  const std::int64_t offset = stretch.offset_in(add.operand), stride = stretch.stride_in(add.operand);
  with_type(data_type_of(add.operand.type), [&](auto stored) {
    const auto* const from = static_cast<const decltype(stored)*>(add.data) + offset;
    for (std::int64_t i = 0; i < stretch.count; ++i) {
      const double addend = add.operand_scale * widened(from[i * stride]);
      values[i] = add.scale == 0 ? addend : add.scale * values[i] + addend;
    }
  });
}

void apply(const Rectifier& rectifier, const Stretch& stretch, double* values) {
  const auto [lower, upper, slope, propagate_nan] = rectifier;
  for (std::int64_t i = 0; i < stretch.count; ++i) {
    const double value = values[i];
    if (std::isnan(value)) {
      values[i] = propagate_nan ? value : lower;
    } else {
      values[i] = value > lower ? std::min(value, upper)
                  : slope == 0  ? lower
                                : lower + slope * (value - lower);
    }
  }
}

// Returns the bias that is to be added to alpha * convolution, if the step does just that: the convolution
// then adds it in its last write. Null otherwise.
const void* bias_of(const Step& step, const cudnnTensorStruct& y) {
  const auto* const add = std::get_if<Addition>(&step);
  if (add == nullptr || add->scale != 1 || add->operand_scale != 1) return nullptr;
  const cudnnTensorStruct& operand = add->operand;
  const bool is_like_y = operand.type == y.type && (operand.strides[1] == 1 || operand.sizes[1] == 1);
  return is_like_y && has_only_channels(operand, y) ? add->data : nullptr;
}

}  // namespace

void check_stretches(const cudnnTensorStruct& part, const cudnnTensorStruct& whole) {
  if (whole.dims == 0 || part.dims != whole.dims) {
    bad_parameter("a tensor of ", part.dims, " dimensions is added to one of ", whole.dims);
  }
  for (int axis = 0; axis < whole.dims; ++axis) {
    if (part.sizes[axis] == 1 || part.sizes[axis] == whole.sizes[axis]) continue;
    bad_parameter("dimension ", axis, " of the addend has size ", part.sizes[axis], ", that of the tensor ",
                  whole.sizes[axis]);
  }
}

bool has_only_channels(const cudnnTensorStruct& part, const cudnnTensorStruct& whole) {
  bool equal = part.dims == whole.dims;
  for (int axis = 0; axis < whole.dims; ++axis)
    equal = equal && part.sizes[axis] == (axis == 1 ? whole.sizes[axis] : 1);
  return equal;
}

void apply(const std::vector<Step>& steps, const cudnnTensorStruct& tensor, void* data) {
  if (steps.empty()) return;
  const auto* const first = std::get_if<Addition>(&steps.front());
  const bool reads = first == nullptr || first->scale != 0;
  with_type(data_type_of(tensor.type), [&](auto stored) {
    parallel_for(rows_of(tensor), [&](std::int64_t begin, std::int64_t end) {
      for_each_stretch(tensor, begin, end, [&](const Stretch& stretch) {
        double values[kStretch];
        auto* const at = static_cast<decltype(stored)*>(data) + stretch.offset_in(tensor);
        const std::int64_t stride = stretch.stride_in(tensor);
        for (std::int64_t i = 0; i < stretch.count; ++i) values[i] = reads ? widened(at[i * stride]) : 0;
        for (const Step& step : steps) {
          std::visit([&](const auto& kind) { apply(kind, stretch, values); }, step);
        }
        for (std::int64_t i = 0; i < stretch.count; ++i) narrow(values[i], at[i * stride]);
      });
    });
  });
}

void sum_channels(double scale, const cudnnTensorStruct& tensor, const void* from, double keep,
                  std::int64_t to_stride, void* to) {
  cudnnTensorStruct channel = tensor;
  channel.sizes[1] = 1;
  with_type(data_type_of(tensor.type), [&](auto stored) {
    using Type = decltype(stored);
    parallel_for(tensor.sizes[1], [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = begin; c < end; ++c) {
        const Type* const values = static_cast<const Type*>(from) + c * tensor.strides[1];
        Type& total = static_cast<Type*>(to)[c * to_stride];
        double sum = 0;
        for_each_stretch(channel, 0, rows_of(channel), [&](const Stretch& stretch) {
          const std::int64_t offset = stretch.offset_in(channel), stride = stretch.stride_in(channel);
          for (std::int64_t i = 0; i < stretch.count; ++i) sum += widened(values[offset + i * stride]);
        });
        narrow(scale * sum + (keep == 0 ? 0 : keep * widened(total)), total);
      }
    });
  });
}

void convolve_forward(const Variant& variant, const Kernel& kernel, const Tensors& tensors, double alpha,
                      const Residual& residual, const std::vector<Step>& steps, const cudnnTensorStruct& y,
                      void* workspace) {
  const Problem& problem = kernel.problem;
  if (residual.scale != 0 && residual.data != tensors.y) {
    if (tensors.pitch.of_y(problem) == problem.out_channels && tensors.pitch.y_rows == 0) {
      std::memcpy(tensors.y, residual.data,
                  static_cast<std::size_t>(problem.mini_batch * problem.y_sample()) * size_of(y.type));
    } else {
      apply({Addition{0, 1, y, residual.data}}, y, tensors.y);
    }
  }
  Tensors with_bias = tensors;
  if (residual.scale == 0 && !steps.empty()) with_bias.bias = bias_of(steps.front(), y);
  convolve(variant, kernel, with_bias, alpha, residual.scale, workspace);
  apply({steps.begin() + (with_bias.bias == nullptr ? 0 : 1), steps.end()}, y, tensors.y);
}

}  // namespace mucudnn::host
