#include "host/algorithms/depthwise_bands.hpp"

namespace mucudnn::host::depthwise {
namespace {

// A band of this size stays in the second-level cache, with the lines of the tensors that it is made of.
constexpr std::int64_t kCachedFloats = 96 * 1024;

// The channels of a pixel that a thread reads together in NHWC: memory delivers four successive cache lines
// more than twice as fast as single ones.
constexpr std::int64_t kChannelsTogether = 64;

std::vector<Axis> axes_of(const Kernel& kernel, int i) {
  if (kernel.pass != Pass::backward_data) return {lower_forward(kernel.problem).axes[i]};
  std::vector<Axis> axes;
  const std::int64_t residues = std::min(kernel.problem.stride[i], kernel.problem.input[i]);
  for (std::int64_t residue = 0; residue < residues; ++residue) {
    Problem::Sizes at{};
    at[i] = residue;
    axes.push_back(lower_backward_data(kernel.problem, at).axes[i]);
  }
  return axes;
}

}  // namespace

Bands::Bands(const Kernel& kernel, const Pitch& in_memory) {
  const Problem& p = kernel.problem;
  lanes = transforms::kernels().depthwise.lanes;
  blocks = ceil_div(p.groups, lanes);
  blocks_at_once = p.layout == Layout::nhwc ? std::min(blocks, kChannelsTogether / lanes) : 1;
  multiplier = p.out_channels / p.groups;
  source = {p.layout, p.groups, 1, in_memory.of_x(p), p.input};
  result = {p.layout, p.groups, multiplier, in_memory.of_y(p), p.output};
  backward_ = kernel.pass == Pass::backward_data;
  if (backward_) std::swap(source, result);
  taps = p.kernel[0] * p.kernel[1] * p.kernel[2];
  line_taps = p.kernel[2];
  mini_batch_ = p.mini_batch;
  converts_ = p.data_type != DataType::f32;

  left = 0;
  std::int64_t end = source.size[2];
  for (int i = 0; i < 3; ++i) axes_[i] = axes_of(kernel, i);
  for (const Axis& a : axes_[2]) {
    widths.push_back({a.positions, a.taps, a.first, a.step, a.tap_step, a.filter_first, a.filter_step,
                      a.result_first, a.result_step});
    if (a.taps == 0) continue;
    const std::int64_t last = (a.positions - 1) * a.step, last_tap = (a.taps - 1) * a.tap_step;
    left = std::max(left, -(a.first + std::min<std::int64_t>(0, last_tap)));
    end = std::max(end, a.first + last + std::max<std::int64_t>(0, last_tap) + 1);
  }
  pitch = std::min(left + end, kBandFloats);  // a longer one does not fit, and products of it could overflow
  slices = 0;
  for (const Axis& a : axes_[0]) slices = std::max(slices, a.taps);

  stride_ = p.stride[1];
  padding_ = p.padding[1];
  reach_ = (p.kernel[1] - 1) * p.dilation[1];
  set_rows(result.size[1]);
  while (rows > 1 && floats() > kCachedFloats) set_rows(ceil_div(rows, 2));
}

bool Bands::fit() const {
  return filter_floats() <= kSharedFloats && pitch * lanes <= kBandFloats && floats() <= kBandFloats;
}

Range Bands::rows_read(Range of_result) const {
  Range read{of_result.begin * stride_ - padding_, (of_result.end - 1) * stride_ - padding_ + reach_ + 1};
  if (backward_) {
    const std::int64_t first = of_result.begin + padding_ - reach_;
    read = {first <= 0 ? 0 : ceil_div(first, stride_), (of_result.end - 1 + padding_) / stride_ + 1};
  }
  read = {std::max<std::int64_t>(0, read.begin), std::min(source.size[1], read.end)};
  return {read.begin, std::max(read.begin, read.end)};
}

std::int64_t Bands::converted_floats() const {
  return converts_ ? std::max(source_rows * source.size[2], rows * result.size[2]) * lanes : 0;
}

void Bands::set_rows(std::int64_t most) {
  parts_ = ceil_div(result.size[1], most);
  rows = ceil_div(result.size[1], parts_);
  source_rows = backward_ ? (rows - 1 + reach_) / stride_ + 1 : (rows - 1) * stride_ + reach_ + 1;
  source_rows = std::min(source.size[1], source_rows);
}

}  // namespace mucudnn::host::depthwise
