// The passes of a convolution as blocked matrix products, for the implicit and the explicit GEMM: they
// differ in how large the blocks are and in where the matrices stand.
#pragma once

#include <functional>

#include "host/convolution.hpp"
#include "host/lowering.hpp"

namespace mucudnn::host {

// Where one block's matrices stand: what the pixels meet (rows, pixels), a tile of the result (channels,
// pixels; for the filter channels, rows), and the filter or dy packed for the product.
template <typename Storage>
struct Matrices {
  Compute<Storage>* columns;
  Compute<Storage>* tile;
  Compute<Storage>* packed;
};

// How a product is cut: blocks of at most `rows` by `pixels`.
template <typename Storage>
struct Blocks {
  std::int64_t rows;
  std::int64_t pixels;
  // The memory of a block that begins at this pixel and row; called from the thread that works on it.
  std::function<Matrices<Storage>(std::int64_t pixel, std::int64_t row)> matrices;
};

// One group's part of a problem, as a pass sees it.
template <typename Storage>
struct Part {
  const Problem& problem;
  Pass pass;
  Channels<Storage> x;
  Storage* w;  // of the group's first output channel
  Channels<Storage> y;

  // What the pixels of the result meet, and the result; for backward_filter, whose result is w, dy.
  const Channels<Storage>& source() const { return pass == Pass::backward_data ? y : x; }
  const Channels<Storage>& output() const { return pass == Pass::backward_data ? x : y; }
  std::int64_t rows(const Lattice& lattice) const {
    return static_cast<std::int64_t>(lattice.taps.size()) * source().count;
  }
};

template <typename Storage>
Part<Storage> part_of(const Problem& problem, Pass pass, const Tensors& tensors, std::int64_t group) {
  const std::int64_t in = problem.in_channels / problem.groups;
  const std::int64_t out = problem.out_channels / problem.groups;
  const auto channels = [&](void* data, std::int64_t total, std::int64_t count, std::int64_t volume) {
    const std::int64_t first = group * count * (problem.layout == Layout::nhwc ? 1 : volume);
    return Channels<Storage>{static_cast<Storage*>(data) + first, problem.layout, total, count};
  };
  return {problem, pass,
          channels(tensors.x, problem.in_channels, in, problem.x_sample() / problem.in_channels),
          static_cast<Storage*>(tensors.w) + group * (problem.w_elements() / problem.groups),
          channels(tensors.y, problem.out_channels, out, problem.y_sample() / problem.out_channels)};
}

// One pass over one lattice: output = alpha * product + beta * output. Blocks stay within samples, or span
// several of them where samples are small.
template <typename Storage>
void multiply(const Part<Storage>& part, const Lattice& lattice, double alpha, double beta,
              const Blocks<Storage>& blocks, bool within_samples);

}  // namespace mucudnn::host
