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
  const std::vector<Lattice> lattices = pass == Pass::backward_data
                                            ? backward_lattices(problem)
                                            : std::vector<Lattice>{forward_lattice(problem)};
  for (std::int64_t group = 0; group < problem.groups; ++group) {
    const Part<Storage> part = part_of<Storage>(problem, pass, tensors, group);
    const std::int64_t outputs = pass == Pass::backward_data ? part.x.count : part.y.count;
    for (const Lattice& lattice : lattices) {
      const std::int64_t sources = pass == Pass::backward_data ? part.y.count : part.x.count;
      const std::int64_t all =
          std::max<std::int64_t>(1, static_cast<std::int64_t>(lattice.taps.size()) * sources);
      std::int64_t most = std::min(kRows, std::max<std::int64_t>(1, kTile / outputs));
      if (pass == Pass::backward_filter) most = std::min(most, (all + threads() - 1) / threads());
      const std::int64_t rows = std::min(most, all);
      const bool within = lattice.pixels() >= kSmallSample;
      const std::int64_t pixels = std::min(kColumns / rows, std::max<std::int64_t>(1, kTile / outputs));
      multiply<Storage>(part, lattice, alpha, beta,
                        {rows, pixels, [](std::int64_t, std::int64_t) { return tiles<Storage>(); }}, within);
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
