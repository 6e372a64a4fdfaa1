#include "core/tensors.hpp"

namespace mucudnn {
namespace {

std::vector<std::int64_t> sizes_of(const Problem& p, std::int64_t first, std::int64_t channels,
                                   const Problem::Sizes& sizes) {
  std::vector<std::int64_t> all = spatial_sizes(p, sizes);
  all.insert(all.begin(), {first, channels});
  return all;
}

}  // namespace

std::vector<std::int64_t> x_sizes(const Problem& p) {
  return sizes_of(p, p.mini_batch, p.in_channels, p.input);
}
std::vector<std::int64_t> w_sizes(const Problem& p) {
  return sizes_of(p, p.out_channels, p.in_channels / p.groups, p.kernel);
}
std::vector<std::int64_t> y_sizes(const Problem& p) {
  return sizes_of(p, p.mini_batch, p.out_channels, p.output);
}

std::vector<std::int64_t> spatial_sizes(const Problem& p, const Problem::Sizes& sizes) {
  return {sizes.end() - p.dims, sizes.end()};
}

std::vector<std::int64_t> packed_strides(const std::vector<std::int64_t>& sizes, Layout layout) {
  std::vector<std::int64_t> strides(sizes.size());
  std::int64_t step = 1;
  for_each_axis(static_cast<int>(sizes.size()), layout, [&](int axis) {
    strides[axis] = step;
    step *= sizes[axis];
  });
  return strides;
}

}  // namespace mucudnn
