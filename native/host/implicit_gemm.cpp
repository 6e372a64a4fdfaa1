// Implicit GEMM: the products go through tiles of constant size, so that no workspace is needed.
#include <memory>

#include "host/algorithms.hpp"
#include "host/parallel.hpp"
#include "host/product.hpp"

namespace mucudnn::host::implicit_gemm {
namespace {

// Elements of a thread's tiles: the columns stay in a second-level cache.
constexpr std::int64_t kColumns = std::int64_t{1} << 18;
constexpr std::int64_t kTile = std::int64_t{1} << 20;
constexpr std::int64_t kRows = 384;
constexpr std::int64_t kSmallSample = 256;  // pixels below which blocks span several samples

template <typename C>
struct Tiles {
  std::unique_ptr<C[]> columns{new C[kColumns]};
  std::unique_ptr<C[]> tile{new C[kTile]};
  std::unique_ptr<C[]> packed{new C[kTile]};
};

template <typename Storage>
Matrices<Storage> tiles() {
  static thread_local Tiles<Compute<Storage>> own;
  return {own.columns.get(), own.tile.get(), own.packed.get()};
}

template <typename Storage>
void run(Pass pass, const Problem& problem, const Tensors& tensors, double alpha, double beta) {
  const std::vector<Lattice> lattices = lattices_of(problem, pass);
  for (std::int64_t group = 0; group < problem.groups; ++group) {
    const Part<Storage> part = part_of<Storage>(problem, pass, tensors, group);
    const std::int64_t most_in_tile = kTile / part.output().count;
    for (const Lattice& lattice : lattices) {
      const std::int64_t all = std::max<std::int64_t>(1, part.rows(lattice));
      std::int64_t rows = std::min({kRows, most_in_tile, all});
      if (pass == Pass::backward_filter) rows = std::min(rows, (all + threads() - 1) / threads());
      const Blocks<Storage> blocks{rows, std::min(kColumns / rows, most_in_tile),
                                   [](std::int64_t, std::int64_t) { return tiles<Storage>(); }};
      multiply(part, lattice, alpha, beta, blocks, lattice.pixels() >= kSmallSample);
    }
  }
}

}  // namespace

std::optional<std::size_t> workspace_size(Pass, const Problem& problem) {
  // One pixel's channels must fit into a tile.
  if (std::max(problem.in_channels, problem.out_channels) / problem.groups > kTile) return std::nullopt;
  return 0;
}

void convolve(Pass pass, const Problem& problem, const Tensors& tensors, double alpha, double beta, void*) {
  switch (problem.data_type) {
    case DataType::f32:
      return run<float>(pass, problem, tensors, alpha, beta);
    case DataType::f64:
      return run<double>(pass, problem, tensors, alpha, beta);
    case DataType::f16:
      return run<Half>(pass, problem, tensors, alpha, beta);
    case DataType::bf16:
      return run<BFloat16>(pass, problem, tensors, alpha, beta);
  }
}

}  // namespace mucudnn::host::implicit_gemm
