// Explicit GEMM: the columns of the whole mini-batch stand in the workspace, for one product of each group.
#include "host/algorithms.hpp"
#include "host/parallel.hpp"
#include "host/product.hpp"

namespace mucudnn::host::explicit_gemm {
namespace {

constexpr std::int64_t kAlignment = 16;  // floats

// Sizes in floats of the three matrices; each group and lattice uses them again.
struct Layouts {
  std::int64_t columns = 0;
  std::int64_t tile = 0;
  std::int64_t packed = 0;
};

// False where the product overflows or exceeds any memory.
bool grow(std::int64_t& size, std::int64_t a, std::int64_t b) {
  std::int64_t product;
  if (__builtin_mul_overflow(a, b, &product) || product > (std::int64_t{1} << 58)) return false;
  size = std::max(size, (product + kAlignment - 1) / kAlignment * kAlignment);
  return true;
}

std::optional<Layouts> layouts(Pass pass, const Problem& problem) {
  const bool backward = pass == Pass::backward_data;
  const std::int64_t in = problem.in_channels / problem.groups, out = problem.out_channels / problem.groups;
  const std::int64_t sources = backward ? out : in, outputs = backward ? in : out;
  const bool within = problem.layout == Layout::nhwc || problem.mini_batch == 1;
  Layouts all;
  for (const Lattice& lattice : lattices_of(problem, pass)) {
    const std::int64_t pixels = lattice.pixels() * problem.mini_batch;
    const std::int64_t rows = static_cast<std::int64_t>(lattice.taps.size()) * sources;
    bool fits = grow(all.columns, rows, pixels);
    if (pass == Pass::backward_filter) {
      fits = fits && grow(all.tile, outputs, rows) && (within || grow(all.packed, outputs, pixels));
    } else {
      if (!within || rows == 0 || lattice.count != lattice.output)
        fits = fits && grow(all.tile, outputs, pixels);
      if (backward) fits = fits && grow(all.packed, outputs, rows);
    }
    if (!fits) return std::nullopt;
  }
  return all;
}

}  // namespace

std::optional<std::size_t> workspace_size(Pass pass, const Problem& problem) {
  if (problem.data_type != DataType::f32) return std::nullopt;
  const std::optional<Layouts> sizes = layouts(pass, problem);
  if (!sizes) return std::nullopt;
  return static_cast<std::size_t>(sizes->columns + sizes->tile + sizes->packed) * sizeof(float);
}

void convolve(Pass pass, const Problem& problem, const Tensors& tensors, double alpha, double beta,
              void* workspace) {
  const Layouts sizes = *layouts(pass, problem);
  auto* const columns = static_cast<float*>(workspace);
  float* const tile = columns + sizes.columns;
  float* const packed = tile + sizes.tile;
  const bool within = problem.layout == Layout::nchw && problem.mini_batch == 1;
  for (std::int64_t group = 0; group < problem.groups; ++group) {
    const Part<float> part = part_of<float>(problem, pass, tensors, group);
    const std::int64_t outputs = part.output().count;
    for (const Lattice& lattice : lattices_of(problem, pass)) {
      const std::int64_t all = std::max<std::int64_t>(1, part.rows(lattice));
      const std::int64_t pixels = lattice.pixels() * problem.mini_batch;
      Blocks<float> blocks;
      if (pass == Pass::backward_filter) {
        blocks = {(all + threads() - 1) / threads(), pixels, [=](std::int64_t, std::int64_t row) {
                    return Matrices<float>{columns + row * pixels, tile + row * outputs, packed};
                  }};
      } else {
        blocks = {all, (pixels + threads() - 1) / threads(), [=](std::int64_t pixel, std::int64_t) {
                    return Matrices<float>{columns + pixel * all, tile + pixel * outputs, packed};
                  }};
      }
      multiply<float>(part, lattice, alpha, beta, blocks, within);
    }
  }
}

}  // namespace mucudnn::host::explicit_gemm
