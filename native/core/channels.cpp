#include "core/channels.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "core/scratch.hpp"
#include "core/text.hpp"

namespace mucudnn {
namespace {

constexpr std::int64_t kFewest = 16;   // fewer channels leave the vector units and the tensor cores idle
constexpr std::int64_t kMultiple = 8;  // tensor cores take channels in 16-bit types by eight
constexpr std::int64_t kMostGroups = 16;

std::size_t volume(const Problem::Sizes& sizes) {
  std::size_t product = 1;
  for (const std::int64_t size : sizes) product *= static_cast<std::size_t>(size);
  return product;
}

std::size_t number(std::int64_t value) { return static_cast<std::size_t>(value); }

// Returns the pieces of some channels of an array (outer, channels, inner).
Pieces pieces_of(std::size_t outer, std::int64_t all, std::size_t inner, DataType type, std::int64_t first,
                 std::int64_t channels) {
  const std::size_t channel = inner * size_of(type);
  return {number(first) * channel, number(channels) * channel, number(all) * channel, outer};
}

// Returns the pieces of some of a tensor's second dimension, which has `all` channels. A tensor that every
// group reads whole has no piece that is copied.
Pieces channel_pieces(const Problem& p, std::size_t outer, std::size_t volume, std::int64_t all,
                      std::int64_t first, std::int64_t count) {
  if (count == all) return {0, 0, 0, 1};
  if (p.layout == Layout::nhwc) return pieces_of(outer * volume, all, 1, p.data_type, first, count);
  return pieces_of(outer, all, volume, p.data_type, first, count);
}

std::size_t copied(const Pieces& pieces, bool in_place) { return in_place ? 0 : aligned(pieces.bytes()); }

}  // namespace

std::int64_t divided_channels(const Kernel& kernel, bool of_inputs) {
  const Problem& p = kernel.problem;
  const bool reads_like_y = std::any_of(p.epilogue.begin(), p.epilogue.end(), [](const Pointwise& operation) {
    return operand_of(operation.kind) == Operand::like_y && operation.factor != 0;
  });
  if (p.is_mixed() || kernel.is_fused_gradient() || reads_like_y) return 1;
  if (of_inputs && (kernel.pass != Pass::backward_filter || p.groups > 1)) return 1;
  return of_inputs || kernel.pass == Pass::backward_data ? p.in_channels : p.out_channels;
}

std::int64_t channel_unit(const Kernel& kernel, bool of_inputs) {
  const std::int64_t all = divided_channels(kernel, of_inputs), groups = kernel.problem.groups;
  return all > 1 && groups > 1 ? all / groups : 1;
}

std::vector<std::int64_t> channel_counts(const Kernel& kernel, bool of_inputs) {
  const std::int64_t all = divided_channels(kernel, of_inputs), unit = channel_unit(kernel, of_inputs);
  std::vector<std::int64_t> counts;
  for (std::int64_t channels = all; channels % (2 * kMultiple) == 0 && channels % (2 * unit) == 0 &&
                                    channels >= 2 * kFewest && channels * kMostGroups > all;) {
    channels /= 2;
    counts.push_back(channels);
  }
  return counts;
}

Kernel group_kernel(const Kernel& kernel, std::int64_t channels, bool of_inputs) {
  const std::int64_t all = divided_channels(kernel, of_inputs);
  if (channels < 1 || channels > all) {
    reject("a group of ", channels, " channels: ", name_of(kernel.pass), " of this convolution divides ",
           all);
  }
  if (channels % channel_unit(kernel) != 0) {
    reject("a group of ", channels, " channels: this convolution has groups of its own, of ",
           channel_unit(kernel), " channels each");
  }
  Kernel group = kernel;
  const ChannelRange range(kernel, 0, channels, of_inputs);
  group.problem.in_channels = range.in_count;
  group.problem.out_channels = range.out_count;
  if (kernel.problem.groups > 1 && all > 1) group.problem.groups = channels / channel_unit(kernel);
  return group;
}

ChannelRange::ChannelRange(const Kernel& kernel, std::int64_t first, std::int64_t channels, bool of_inputs)
    : in_count(kernel.problem.in_channels), out_count(kernel.problem.out_channels) {
  const std::int64_t all = divided_channels(kernel, of_inputs);
  if (all == 1) return;
  const auto take = [&](std::int64_t& first_here, std::int64_t& count) {
    const std::int64_t whole = std::exchange(count, count * channels / all);
    first_here = whole * first / all;
  };
  const bool divides_inputs = of_inputs || kernel.pass == Pass::backward_data;
  if (kernel.problem.groups > 1 || divides_inputs) take(in_first, in_count);
  if (kernel.problem.groups > 1 || !divides_inputs) take(out_first, out_count);
}

Pieces filter_pieces(const Kernel& kernel, const ChannelRange& range) {
  const Problem& p = kernel.problem;
  const std::size_t taps = volume(p.kernel);
  if (range.out_count < p.out_channels) {
    return pieces_of(1, p.out_channels, number(p.in_channels / p.groups) * taps, p.data_type, range.out_first,
                     range.out_count);
  }
  return channel_pieces(p, number(p.out_channels), taps, p.in_channels, range.in_first, range.in_count);
}

Pieces x_pieces(const Kernel& kernel, const ChannelRange& range, std::int64_t samples) {
  const Problem& p = kernel.problem;
  return channel_pieces(p, number(samples), volume(p.input), p.in_channels, range.in_first, range.in_count);
}

Pieces y_pieces(const Kernel& kernel, const ChannelRange& range, std::int64_t samples) {
  const Problem& p = kernel.problem;
  return channel_pieces(p, number(samples), volume(p.output), p.out_channels, range.out_first,
                        range.out_count);
}

Pitch slice_pitch(const Kernel& kernel, const ChannelRange& range, std::int64_t samples) {
  const auto pitch = [](const Pieces& pieces, std::int64_t channels) {
    return !pieces.is_packed() && pieces.is_aligned() ? channels : 0;
  };
  return {pitch(x_pieces(kernel, range, samples), kernel.problem.in_channels),
          pitch(y_pieces(kernel, range, samples), kernel.problem.out_channels)};
}

std::size_t group_copies(const Kernel& kernel, std::int64_t channels, std::int64_t samples, bool of_inputs,
                         bool takes_strides) {
  const ChannelRange range(kernel, 0, channels, of_inputs);
  const Pitch pitch = takes_strides ? slice_pitch(kernel, range, samples) : Pitch{};
  const Pieces filter = filter_pieces(kernel, range);
  const Pieces x = x_pieces(kernel, range, samples), y = y_pieces(kernel, range, samples);
  return copied(filter, filter.is_packed()) + copied(x, x.is_in_place() || pitch.x > 0) +
         copied(y, y.is_in_place() || pitch.y > 0);
}

}  // namespace mucudnn
