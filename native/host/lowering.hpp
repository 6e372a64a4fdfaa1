// A convolution as matrix products: which source pixel each output pixel meets at each tap of the filter,
// and the copies that turn tensors into matrices.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "core/half.hpp"
#include "core/problem.hpp"

namespace mucudnn::host {

// The type that products of values of a storage type are summed in.
template <typename Storage>
using Compute = std::conditional_t<std::is_same_v<Storage, double>, double, float>;

inline float widen(float value) { return value; }
inline double widen(double value) { return value; }
inline float widen(Half value) { return to_float(value); }
inline float widen(BFloat16 value) { return to_float(value); }

inline void narrow(float value, float& to) { to = value; }
inline void narrow(double value, double& to) { to = value; }
inline void narrow(float value, Half& to) { to = to_half(value); }
inline void narrow(float value, BFloat16& to) { to = to_bfloat16(value); }

struct Tap {
  std::int64_t filter;    // its place among the filter's taps
  Problem::Sizes offset;  // of the source pixel that pixel 0 meets
};

// Output pixels that all meet the same taps: pixel i lies at origin + stride * i in the output and meets
// offset + step * i in the source, along each axis.
struct Lattice {
  Problem::Sizes count;
  Problem::Sizes origin{0, 0, 0};
  Problem::Sizes stride{1, 1, 1};
  Problem::Sizes step{1, 1, 1};
  Problem::Sizes source;  // sizes of the whole tensors
  Problem::Sizes output;
  std::vector<Tap> taps;

  std::int64_t pixels() const { return count[0] * count[1] * count[2]; }
};

// The lattices that a pass goes through. backward_data goes from y to x, with a lattice for every remainder
// of x's coordinates by the stride, since pixels of the same remainder meet the same taps; the others from x
// to y.
std::vector<Lattice> lattices_of(const Problem& problem, Pass pass);

// One group's channels of a tensor.
template <typename Storage>
struct Channels {
  Storage* data;  // of the group's first channel
  Layout layout;
  std::int64_t total;  // channels of the tensor
  std::int64_t count;  // channels of the group
};

// Pixels [begin, end) of a lattice, counted through all samples of the mini-batch.
struct Range {
  std::int64_t begin;
  std::int64_t end;
  std::int64_t size() const { return end - begin; }
};

// What the pixels of `range` meet, for rows [rows.begin, rows.end) of (channel, tap) in NCHW and of
// (tap, channel) in NHWC. The matrix is (rows, pixels) in NCHW and (pixels, rows) in NHWC.
template <typename Storage>
void gather(const Lattice& lattice, const Channels<const Storage>& source, Range range, Range rows,
            Compute<Storage>* matrix);

// output = alpha * matrix + beta * output for the pixels of `range`; the matrix is (channels, pixels) in
// NCHW and (pixels, channels) in NHWC. With beta 0 the output is not read.
template <typename Storage>
void scatter(const Lattice& lattice, const Channels<Storage>& output, Range range,
             const Compute<Storage>* matrix, double alpha, double beta);

// output = alpha * values + beta * output, `stride` apart in the output.
template <typename Storage>
void store(const Compute<Storage>* values, std::int64_t count, double alpha, double beta, Storage* output,
           std::int64_t stride = 1) {
  const auto scale = static_cast<Compute<Storage>>(alpha);
  const auto keep = static_cast<Compute<Storage>>(beta);
  if (keep == 0) {
    for (std::int64_t i = 0; i < count; ++i) narrow(scale * values[i], output[i * stride]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) {
      narrow(scale * values[i] + keep * widen(output[i * stride]), output[i * stride]);
    }
  }
}

}  // namespace mucudnn::host
