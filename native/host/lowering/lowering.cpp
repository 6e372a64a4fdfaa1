#include "host/lowering/lowering.hpp"

#include <numeric>
#include <utility>

namespace mucudnn::host {

namespace {

// Returns a lowering of y to x if `of_y`, else of x to y, without its axes.
Lowering between(const Problem& p, const Pitch& pitch, bool of_y) {
  Lowering l{p.layout,
             false,
             p.mini_batch,
             p.groups,
             p.in_channels / p.groups,
             p.out_channels / p.groups,
             pitch.of_x(p),
             pitch.of_y(p),
             pitch.plane_of_x(p),
             pitch.plane_of_y(p),
             {}};
  l.transposed = of_y;
  if (of_y) std::swap(l.source_channels, l.result_channels);
  if (of_y) std::swap(l.source_pitch, l.result_pitch);
  if (of_y) std::swap(l.source_plane, l.result_plane);
  return l;
}

}  // namespace

bool Lowering::is_pointwise() const {
  return std::all_of(axes.begin(), axes.end(), [](const Axis& a) {
    return a.taps == 1 && a.step == 1 && a.first == 0 && a.positions == a.source;
  });
}

bool Lowering::is_whole() const {
  return std::all_of(axes.begin(), axes.end(), [](const Axis& a) { return a.positions == a.result; });
}

Lowering lower_forward(const Problem& p, const Pitch& pitch) {
  Lowering l = between(p, pitch, false);
  for (int i = 0; i < 3; ++i) {
    l.axes[i] = {p.output[i], p.kernel[i], p.input[i], -p.padding[i], p.stride[i], p.dilation[i],
                 p.kernel[i], 0,           1,          p.output[i],   0,           1};
  }
  return l;
}

Range Axis::inside(std::int64_t tap) const {
  const std::int64_t offset = source_at(0, tap);
  const std::int64_t begin = offset >= 0 ? 0 : ceil_div(-offset, step);
  const std::int64_t end = source > offset ? ceil_div(source - offset, step) : 0;
  return {std::min(begin, positions), std::min(end, positions)};
}

Lowering lower_gradient(const Lowering& forward) {
  Lowering l = forward;
  l.source_channels = std::exchange(l.result_channels, 1);
  l.source_pitch = std::exchange(l.result_pitch, 1);
  l.source_plane = std::exchange(l.result_plane, 1);
  for (Axis& a : l.axes) {
    a = {a.positions, 1, a.result, a.result_first, 1, 1, 1, 0, 1, a.result, a.result_first, 1};
  }
  return l;
}

// Tap r reads input position i for output (i + padding - r * dilation) / stride, if that is a whole number.
// Along i = residue + stride * o, every (stride / gcd)-th tap gives a whole number.
Lowering lower_backward_data(const Problem& p, const Problem::Sizes& residue, const Pitch& pitch) {
  Lowering l = between(p, pitch, true);
  for (int i = 0; i < 3; ++i) {
    const std::int64_t stride = p.stride[i], dilation = p.dilation[i], at = residue[i] + p.padding[i];
    const std::int64_t divisor = std::gcd(stride, dilation), tap_stride = stride / divisor;
    std::int64_t tap = 0;
    while (tap < std::min(tap_stride, p.kernel[i]) && (at - tap * dilation) % stride != 0) ++tap;
    const bool touched = tap < std::min(tap_stride, p.kernel[i]);
    Axis& a = l.axes[i];
    a.positions = ceil_div(p.input[i] - residue[i], stride);
    a.taps = touched ? ceil_div(p.kernel[i] - tap, tap_stride) : 0;
    a.source = p.output[i];
    a.first = touched ? (at - tap * dilation) / stride : 0;
    a.step = 1;
    a.tap_step = dilation / divisor;
    a.filter = p.kernel[i];
    a.filter_first = tap;
    a.filter_step = -tap_stride;
    // The taps begin with the last of the filter, so that successive taps read successive values.
    if (touched) {
      a.first -= (a.taps - 1) * a.tap_step;
      a.filter_first += (a.taps - 1) * tap_stride;
    }
    a.result = p.input[i];
    a.result_first = residue[i];
    a.result_step = stride;
  }
  return l;
}

}  // namespace mucudnn::host
