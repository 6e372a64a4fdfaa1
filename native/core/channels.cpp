#include "core/channels.hpp"

#include <stdexcept>

#include "core/scratch.hpp"

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

// The channels of a tensor that is an array (outer, channels, inner).
Pieces pieces_of(std::size_t outer, std::int64_t all, std::size_t inner, DataType type, std::int64_t first,
                 std::int64_t channels) {
  const std::size_t channel = inner * size_of(type);
  return {number(first) * channel, number(channels) * channel, number(all) * channel, outer};
}

// A tensor that is not divided.
constexpr Pieces kWhole{0, 0, 0, 1};

std::size_t copied(const Pieces& pieces, bool in_place) { return in_place ? 0 : aligned(pieces.bytes()); }

}  // namespace

std::int64_t divided_channels(const Kernel& kernel) {
  const Problem& p = kernel.problem;
  if (p.groups != 1 || p.is_fused() || p.is_mixed()) return 1;
  return kernel.pass == Pass::backward_data ? p.in_channels : p.out_channels;
}

std::vector<std::int64_t> channel_counts(const Kernel& kernel) {
  const std::int64_t all = divided_channels(kernel);
  std::vector<std::int64_t> counts;
  for (std::int64_t channels = all;
       channels % (2 * kMultiple) == 0 && channels >= 2 * kFewest && channels * kMostGroups > all;) {
    channels /= 2;
    counts.push_back(channels);
  }
  return counts;
}

Kernel group_kernel(const Kernel& kernel, std::int64_t channels) {
  const std::int64_t all = divided_channels(kernel);
  if (channels < 1 || channels > all) {
    throw std::invalid_argument("a group of " + std::to_string(channels) + " channels: " +
                                name_of(kernel.pass) + " of this convolution divides " + std::to_string(all));
  }
  Kernel group = kernel;
  if (all > 1) {
    Problem& p = group.problem;
    (kernel.pass == Pass::backward_data ? p.in_channels : p.out_channels) = channels;
  }
  return group;
}

Pieces filter_pieces(const Kernel& kernel, std::int64_t first, std::int64_t channels) {
  if (divided_channels(kernel) == 1) return kWhole;
  const Problem& p = kernel.problem;
  const std::size_t taps = volume(p.kernel), outputs = number(p.out_channels);
  if (kernel.pass != Pass::backward_data)
    return pieces_of(1, p.out_channels, number(p.in_channels) * taps, p.data_type, first, channels);
  if (p.layout == Layout::nhwc)
    return pieces_of(outputs * taps, p.in_channels, 1, p.data_type, first, channels);
  return pieces_of(outputs, p.in_channels, taps, p.data_type, first, channels);
}

Pieces sample_pieces(const Kernel& kernel, std::int64_t first, std::int64_t channels, std::int64_t samples) {
  const Problem& p = kernel.problem;
  const std::size_t positions = volume(kernel.pass == Pass::backward_data ? p.input : p.output);
  const std::int64_t all = divided_channels(kernel);
  if (all == 1) return kWhole;
  if (p.layout == Layout::nhwc)
    return pieces_of(number(samples) * positions, all, 1, p.data_type, first, channels);
  return pieces_of(number(samples), all, positions, p.data_type, first, channels);
}

GroupCopies::GroupCopies(const Kernel& kernel, std::int64_t channels, std::int64_t count) {
  const Pieces filter = filter_pieces(kernel, 0, channels);
  const Pieces slice = sample_pieces(kernel, 0, channels, count);
  samples = copied(filter, filter.is_packed());
  size = samples + copied(slice, slice.is_in_place());
}

}  // namespace mucudnn
