// Copies of values between tensors, of type S, and memory for computing, of type A: fp32 for 16-bit tensors,
// or the same type.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "core/element.hpp"
#include "core/problem.hpp"
#include "host/transforms/transforms.hpp"

namespace mucudnn::host {

template <typename S>
constexpr bool is_16_bit = std::is_same_v<S, Half> || std::is_same_v<S, BFloat16>;

template <typename S>
const transforms::Conversion& conversion() {
  return std::is_same_v<S, Half> ? transforms::kernels().half : transforms::kernels().bfloat16;
}

// Copies successive values. A gather copies too few at a time for a call to memcpy() to pay off.
template <typename A>
void copy_row(const A* from, std::int64_t count, A* to) {
  const auto copy = [&](auto block) {
    for (std::int64_t i = 0; i < count; i += block) {
      const std::int64_t at = std::min<std::int64_t>(i, count - block);  // the last one overlaps
      std::memcpy(to + at, from + at, block * sizeof(A));
    }
  };
  if (count > 64) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(A));
  } else if (count >= 16) {
    copy(std::integral_constant<int, 16>());
  } else if (count >= 4) {
    copy(std::integral_constant<int, 4>());
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i] = from[i];
  }
}

// Copies every second value of lines, `count` of each. The pitches are values from line to line. Returns
// false if there is no vector code for these types.
template <typename S, typename A>
bool load_alternate(const S* from, std::int64_t pitch, std::int64_t lines, std::int64_t count, A* to,
                    std::int64_t to_pitch) {
  const auto& kernels = transforms::kernels();
  if constexpr (std::is_same_v<S, float>) {
    kernels.copy_alternate(from, pitch, lines, count, to, to_pitch);
  } else if constexpr (is_16_bit<S> && std::is_same_v<S, A>) {
    kernels.copy_alternate_halves(&from->bits, pitch, lines, count, &to->bits, to_pitch);
  } else if constexpr (is_16_bit<S>) {
    conversion<S>().alternate_to_floats(&from->bits, pitch, lines, count, to, to_pitch);
  } else {
    return false;
  }
  return true;
}

// Copies `count` values that are `step` apart.
template <typename S, typename A>
void load_row(const S* from, std::int64_t count, std::int64_t step, A* to) {
  if constexpr (std::is_same_v<S, A>) {
    if (step == 1) return copy_row(from, count, to);
  } else if constexpr (is_16_bit<S>) {
    if (step == 1) return conversion<S>().to_floats(&from->bits, count, to);
  }
  if (step == 2 && count > 0 && load_alternate(from, 0, 1, count, to, 0)) return;
  for (std::int64_t i = 0; i < count; ++i) to[i] = converted<A>(from[i * step]);
}

// Computes to = from + beta * to. With beta 0 it does not read `to`.
template <typename S, typename A>
void store_row(const A* from, std::int64_t count, A beta, S* to, std::int64_t step = 1) {
  if (beta != 0) {
    for (std::int64_t i = 0; i < count; ++i) {
      to[i * step] = converted<S>(from[i] + beta * converted<A>(to[i * step]));
    }
    return;
  }
  if constexpr (is_16_bit<S>) {
    if (step == 1) return conversion<S>().from_floats(from, count, &to->bits);
  }
  for (std::int64_t i = 0; i < count; ++i) to[i * step] = converted<S>(from[i]);
}

// Computes to = from + shift(i), which is of type A.
template <typename S, typename A, typename Shift>
void store_shifted(const A* from, std::int64_t count, const Shift& shift, S* to, std::int64_t step) {
  if constexpr (is_16_bit<S>) {
    constexpr std::int64_t kPart = 256;
    for (std::int64_t begin = 0; step == 1 && begin < count; begin += kPart) {
      const std::int64_t part = std::min(kPart, count - begin);
      A sums[kPart];
      for (std::int64_t i = 0; i < part; ++i) sums[i] = from[begin + i] + shift(begin + i);
      conversion<S>().from_floats(sums, part, &to[begin].bits);
    }
    if (step == 1) return;
  }
  for (std::int64_t i = 0; i < count; ++i) to[i * step] = converted<S>(from[i] + shift(i));
}

// Writes the bias to positions of a matrix in a tensor, before a product is added to it: the caches hold the
// matrix then. It is channels × positions in NCHW, positions × channels in NHWC.
template <typename S>
void fill_with_bias(Layout layout, const S* bias, std::int64_t channels, std::int64_t positions, S* to,
                    std::int64_t stride) {
  if (layout == Layout::nchw) {
    for (std::int64_t c = 0; c < channels; ++c) std::fill_n(to + c * stride, positions, bias[c]);
  } else {
    for (std::int64_t p = 0; p < positions; ++p) copy_row(bias, channels, to + p * stride);
  }
}

// Returns the bias of all channels in fp32, with zeros behind it, so that a vector of channels can be read
// from any of them; nothing without a bias.
template <typename S>
std::vector<float> bias_in_fp32(const void* bias, std::int64_t channels) {
  if (bias == nullptr) return {};
  std::vector<float> values(static_cast<std::size_t>(channels + transforms::block_channels));
  load_row(static_cast<const S*>(bias), channels, 1, values.data());
  return values;
}

// A block of a tensor: three dimensions with the distance of their values in the tensor. The copy of a block
// has no gaps, and its first dimension is contiguous.
struct Dimension {
  std::int64_t count, stride;
};
using Block = std::array<Dimension, 3>;

// Calls body(values, count, stride, at) for the longest runs of a block. The copy of a run begins at `at`.
template <typename S, typename Body>
void for_each_run(const Block& block, S* tensor, const Body& body) {
  auto [run, middle, outer] = block;
  for (int i = 0; i < 2 && run.stride == 1 && middle.stride == run.count; ++i) {
    run.count *= middle.count;
    middle = outer;
    outer = {1, 0};
  }
  std::int64_t at = 0;
  for (std::int64_t o = 0; o < outer.count; ++o) {
    for (std::int64_t m = 0; m < middle.count; ++m, at += run.count) {
      body(tensor + o * outer.stride + m * middle.stride, run.count, run.stride, at);
    }
  }
}

template <typename S>
void load_block(const S* tensor, const Block& block, float* copy) {
  for_each_run(block, tensor, [copy](const S* values, std::int64_t count, std::int64_t stride, auto at) {
    load_row(values, count, stride, copy + at);
  });
}

template <typename S>
void store_block(const float* copy, const Block& block, S* tensor, float beta = 0) {
  for_each_run(block, tensor, [=](S* values, std::int64_t count, std::int64_t stride, auto at) {
    store_row(copy + at, count, beta, values, stride);
  });
}

}  // namespace mucudnn::host
