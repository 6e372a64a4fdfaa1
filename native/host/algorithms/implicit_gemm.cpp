#include <array>

#include "core/half.hpp"
#include "host/algorithms/algorithms.hpp"
#include "host/algorithms/depthwise.hpp"
#include "host/algorithms/scattering.hpp"
#include "host/lowering/im2col.hpp"
#include "host/threads/parallel.hpp"
#include "host/threads/thread_memory.hpp"
#include "host/transforms/products.hpp"
#include "host/transforms/transforms.hpp"

namespace mucudnn::host::implicit_gemm {
namespace {

// The sizes of one thread's tile: the columns, the sum of the result, and a copy of the other factor if it
// cannot be used in place. They bound the memory, so that the algorithm needs no workspace.
constexpr std::size_t kColumnsBytes = 512 * 1024;
constexpr std::size_t kResultBytes = 768 * 1024;
constexpr std::size_t kFactorBytes = 768 * 1024;
constexpr std::int64_t kDepth = 320;     // terms of the sum in one product, or rows of a gradient
constexpr std::int64_t kChannels = 512;  // channels of the result in one tile

// Returns the most rows of columns at a time. In NHWC a gather of all rows copies whole lines of taps.
template <typename F>
std::int64_t most_rows(const Lowering& l) {
  const bool all = is_16_bit<F> && l.layout == Layout::nhwc && l.rows() <= 2 * kDepth;
  return all ? 2 * kDepth : kDepth;
}

// S is the type in tensors, F that of the factors of products, A that of their sums.
template <typename F, typename A>
struct Tile {
  static constexpr std::int64_t kColumns = kColumnsBytes / sizeof(F);
  static constexpr std::int64_t kResult = kResultBytes / sizeof(A);
  static constexpr std::int64_t kFactor = kFactorBytes / sizeof(F);
  F* columns;
  A* result;
  F* factor;
};

template <typename F, typename A>
Tile<F, A> tile_of_this_thread() {
  static_assert(kColumnsBytes + kResultBytes + kFactorBytes <= kThreadMemory);
  char* first = static_cast<char*>(memory_of_this_thread());
  return {reinterpret_cast<F*>(first), reinterpret_cast<A*>(first + kColumnsBytes),
          reinterpret_cast<F*>(first + kColumnsBytes + kResultBytes)};
}

// With few channels, copies inside a product take longer than the product. OpenBLAS's AVX-512 code multiplies
// matrices of up to 10^6 multiplications without copying them first.
constexpr std::int64_t kFewChannels = 96;
constexpr std::int64_t kFewestColumns = 16;  // fewer channels do not fill a vector in NHWC
constexpr std::int64_t kSmallProduct = 1'000'000;
constexpr std::int64_t kSmallDepth = 128;
constexpr std::int64_t kSmallWidth = 96;
constexpr std::int64_t kFewestTerms = 16;  // with fewer, most of an AMX register would be zeros
constexpr std::int64_t kSmallHeight = 64;
// Wide products with so many channels are still faster in small blocks, if they sum many terms.
constexpr std::int64_t kWideChannels = 192;

// Columns in NCHW are so many values apart beyond their number: successive rows lie in different cache sets.
constexpr std::int64_t kGap = 16;

// Returns whether products of so many channels are computed in small blocks.
template <typename F>
bool in_small_blocks(std::int64_t channels, std::int64_t most = kFewChannels) {
  return std::is_same_v<F, float> && channels <= most && has_small_products();
}

// Without OpenBLAS's code for small products, our own computes those of at most so many rows, or columns
// whose terms are contiguous.
constexpr std::int64_t kMostOwnRows = 256;
constexpr std::int64_t kMostOwnColumns = 64;

// Computes c = alpha * op(a) * b + beta * c, in small blocks unless c has many rows or few terms. The lines
// of b have kGap values behind their end.
template <typename F, typename A>
void multiply_wide(Transpose transpose, std::int64_t m, std::int64_t n, std::int64_t k, A alpha, Matrix<F> a,
                   Matrix<F> b, A beta, A* c, std::int64_t stride) {
  if constexpr (std::is_same_v<F, float>) {
    if (m <= kMostOwnRows && !has_small_products()) {
      const bool by_terms = transpose == Transpose::yes;
      transforms::kernels().multiply_small({m, n, k, alpha, a.data, by_terms ? 1 : a.stride,
                                            by_terms ? a.stride : 1, b.data, b.stride, beta, c, stride});
      return;
    }
  }
  const NoFork no_fork;
  const bool blocks = in_small_blocks<F>(m, k < kSmallDepth ? kFewChannels : kWideChannels);
  const std::int64_t height = blocks && m > kFewChannels ? even_part(m, kSmallHeight) : m;
  const std::int64_t depth = blocks ? even_part(k, kSmallDepth) : k;
  const std::int64_t width = blocks ? std::min(kSmallWidth, kSmallProduct / (height * depth) / 16 * 16) : n;
  const bool transposed = transpose == Transpose::yes;
  for_each_part({0, n}, width, [&](Range columns) {
    for_each_part({0, m}, height, [&](Range channels) {
      for_each_part({0, k}, depth, [&](Range rows) {
        const F* factor = a.data + (transposed ? rows.begin * a.stride + channels.begin
                                               : channels.begin * a.stride + rows.begin);
        gemm(transpose, Transpose::no, channels.size(), columns.size(), rows.size(), alpha, factor, a.stride,
             b.data + rows.begin * b.stride + columns.begin, b.stride, rows.begin == 0 ? beta : A(1),
             c + channels.begin * stride + columns.begin, stride, no_fork);
      });
    });
  });
}

// Computes c = alpha * a * op(b) + beta * c, with few columns of c in small blocks if b is not transposed.
template <typename F, typename A>
void multiply_tall(Transpose transpose, std::int64_t m, std::int64_t n, std::int64_t k, A alpha, Matrix<F> a,
                   Matrix<F> b, A beta, A* c, std::int64_t stride) {
  const NoFork no_fork;
  const bool blocks = transpose == Transpose::no && n >= kFewestColumns && in_small_blocks<F>(n);
  const std::int64_t depth = blocks ? std::min(k, kSmallDepth) : k;
  const std::int64_t height = blocks ? kSmallProduct / (n * depth) : m;
  for_each_part({0, m}, height, [&](Range rows) {
    for_each_part({0, k}, depth, [&](Range terms) {
      gemm(Transpose::no, transpose, rows.size(), n, terms.size(), alpha,
           a.data + rows.begin * a.stride + terms.begin, a.stride,
           b.data + terms.begin * (transpose == Transpose::yes ? 1 : b.stride), b.stride,
           terms.begin == 0 ? beta : A(1), c + rows.begin * stride, stride, no_fork);
    });
  });
}

// Computes c = alpha * aᵀ * b + beta * c, with few rows of c in small blocks.
template <typename F, typename A>
void multiply_long(std::int64_t m, std::int64_t n, std::int64_t k, A alpha, Matrix<F> a, Matrix<F> b, A beta,
                   A* c) {
  const NoFork no_fork;
  const bool blocks = m >= kFewestColumns && in_small_blocks<F>(m);
  const std::int64_t width = blocks ? even_part(n, kSmallWidth) : n;
  const std::int64_t depth = blocks ? even_part(k, kSmallProduct / (m * width)) : k;
  for_each_part({0, k}, depth, [&](Range rows) {
    for_each_part({0, n}, width, [&](Range columns) {
      gemm(Transpose::yes, Transpose::no, m, columns.size(), rows.size(), alpha,
           a.data + rows.begin * a.stride, a.stride, b.data + rows.begin * b.stride + columns.begin, b.stride,
           rows.begin == 0 ? beta : A(1), c + columns.begin, n, no_fork);
    });
  });
}

// Computes c = alpha * a * bᵀ + beta * c.
template <typename F, typename A>
void multiply_flat(std::int64_t m, std::int64_t n, std::int64_t k, A alpha, Matrix<F> a, Matrix<F> b, A beta,
                   A* c) {
  if constexpr (std::is_same_v<F, float>) {
    if (n <= kMostOwnColumns && !has_small_products()) {
      transforms::kernels().multiply_small_transposed(
          {m, n, k, alpha, a.data, a.stride, 1, b.data, b.stride, beta, c, n});
      return;
    }
  }
  gemm(Transpose::no, Transpose::yes, m, n, k, alpha, a.data, a.stride, b.data, b.stride, beta, c, n);
}

// Returns the columns. The source of a pointwise product can be its own columns, without a copy.
template <typename S, typename F>
Matrix<F> columns_of(const Lowering& l, const S* source, std::int64_t group, Range rows, Range columns,
                     F* buffer) {
  if constexpr (std::is_same_v<S, F>) {
    const std::int64_t image = columns.begin / l.positions(), first = columns.begin % l.positions();
    const std::int64_t channels = l.source_pitch, channel = group * l.source_channels + rows.begin;
    if (l.pointwise() && l.layout == Layout::nhwc && fits_blas(channels)) {
      return {source + columns.begin * channels + channel, channels};
    }
    if (l.pointwise() && l.layout == Layout::nchw && first + columns.size() <= l.positions() &&
        fits_blas(l.positions())) {
      return {source + (image * channels + channel) * l.positions() + first, l.positions()};
    }
  }
  const std::int64_t stride = l.layout == Layout::nchw ? columns.size() : rows.size();
  gather_columns(l, source, group, rows, columns, buffer, stride);
  return {buffer, stride};
}

// A block of the filter: channels × rows, or rows × channels.
template <typename F>
struct Filter {
  Matrix<F> matrix;
  bool by_rows;
};

template <typename S, typename F>
Filter<F> filter_of(const Lowering& l, const S* filter, std::int64_t group, Range channels, Range rows,
                    F* buffer) {
  const S* first = filter + (group * l.result_channels + channels.begin) * l.rows() + rows.begin;
  if (l.filter_in_order() && l.layout == Layout::nhwc && channels.size() >= kFewestColumns &&
      in_small_blocks<F>(channels.size())) {
    for (std::int64_t i = 0; i < channels.size(); ++i) {
      for (std::int64_t row = 0; row < rows.size(); ++row) {
        buffer[row * channels.size() + i] = load_value<F>(first[i * l.rows() + row]);
      }
    }
    return {{buffer, channels.size()}, true};
  }
  if constexpr (std::is_same_v<S, F>) {
    if (l.filter_in_order() && fits_blas(l.rows())) return {{first, l.rows()}, false};
  }
  const std::int64_t stride = l.transposed ? channels.size() : rows.size();
  gather_filter(l, filter, group, channels, rows, buffer, stride);
  return {{buffer, stride}, l.transposed};
}

// The blocks of the filter, which successive tiles of the same channels share. A block is gathered with all
// its rows if they fit in the buffer.
template <typename S, typename F>
class FilterBlocks {
 public:
  FilterBlocks(const Lowering& l, const S* filter, F* buffer)
      : lowering_(l), filter_(filter), buffer_(buffer) {}

  Filter<F> at(std::int64_t group, Range channels, Range rows) {
    const std::int64_t all_rows = lowering_.rows();
    const Range wanted = channels.size() * all_rows <= Tile<F, F>::kFactor ? Range{0, all_rows} : rows;
    const std::array<std::int64_t, 3> block{group, channels.begin, wanted.begin};
    if (block != block_) found_ = filter_of(lowering_, filter_, group, channels, wanted, buffer_);
    block_ = block;
    const auto& [data, stride] = found_.matrix;
    return {{data + (rows.begin - wanted.begin) * (found_.by_rows ? stride : 1), stride}, found_.by_rows};
  }

 private:
  const Lowering& lowering_;
  const S* filter_;
  F* buffer_;
  Filter<F> found_{};
  std::array<std::int64_t, 3> block_{-1, -1, -1};
};

// The place of a product's result: the tensor itself if the product is whole, else a thread's tile.
template <typename A>
struct Place {
  A* data;
  std::int64_t stride;
};

// Returns the place in the tensor; null if the result is not a matrix there, or is a sum of several products.
template <typename S, typename A>
Place<A> place_in(const Lowering& l, S* result, std::int64_t group, Range channels, Range columns) {
  if constexpr (std::is_same_v<S, A>) {
    const std::int64_t positions = l.positions(), all_channels = l.result_pitch;
    const std::int64_t channel = group * l.result_channels + channels.begin;
    const std::int64_t image = columns.begin / positions, first = columns.begin % positions;
    if (!l.dense() || l.rows() == 0 || l.rows() > kDepth) return {nullptr, 0};
    if (l.layout == Layout::nhwc && fits_blas(all_channels)) {
      return {result + columns.begin * all_channels + channel, all_channels};
    }
    if (l.layout == Layout::nchw && first + columns.size() <= positions && fits_blas(positions)) {
      return {result + (image * all_channels + channel) * positions + first, positions};
    }
  }
  return {nullptr, 0};
}

// The columns of the result, cut into parts. If images are large, a part lies within one image.
class ColumnParts {
 public:
  ColumnParts(const Lowering& l, std::int64_t limit) : positions_(l.positions()), images_(1) {
    if (positions_ >= kWholeImage) {
      images_ = l.mini_batch;
    } else {
      positions_ = l.columns();
    }
    part_ = even_part(positions_, limit);
    parts_ = ceil_div(positions_, part_);
  }
  std::int64_t count() const { return images_ * parts_; }
  Range operator[](std::int64_t index) const {
    const std::int64_t image = index / parts_ * positions_, begin = index % parts_ * part_;
    return {image + begin, image + std::min(positions_, begin + part_)};
  }

 private:
  static constexpr std::int64_t kWholeImage = 512;
  std::int64_t positions_, images_, part_, parts_;
};

// Computes forward and backward_data. A tile is some channels of the result at some positions.
template <typename S, typename F, typename A>
void multiply(const Lowering& l, const S* source, const S* filter, A alpha, A beta, S* result) {
  const std::int64_t depth = even_part(std::max<std::int64_t>(1, l.rows()), most_rows<F>(l));
  const std::int64_t width = Tile<F, A>::kColumns / depth - kGap;
  const std::int64_t channel_part =
      even_part(l.result_channels, std::min(kChannels, Tile<F, A>::kFactor / depth));
  const std::int64_t channel_parts = ceil_div(l.result_channels, channel_part);
  const std::int64_t fair = std::max<std::int64_t>(64, ceil_div(l.columns(), threads()));
  const ColumnParts column_parts(l, std::min(Tile<F, A>::kResult / channel_part, fair));
  const bool nchw = l.layout == Layout::nchw;

  parallel_for(l.groups * channel_parts * column_parts.count(), [&](std::int64_t begin, std::int64_t end) {
    const Tile<F, A> tile = tile_of_this_thread<F, A>();
    FilterBlocks<S, F> blocks(l, filter, tile.factor);
    for (std::int64_t index = begin; index < end; ++index) {
      const std::int64_t group = index / column_parts.count() / channel_parts;
      const std::int64_t first = index / column_parts.count() % channel_parts * channel_part;
      const Range channels{first, std::min(l.result_channels, first + channel_part)};
      const Range columns = column_parts[index % column_parts.count()];
      const Place<A> direct = place_in<S, A>(l, result, group, channels, columns);
      const Place<A> place =
          direct.data != nullptr ? direct : Place<A>{tile.result, nchw ? columns.size() : channels.size()};
      if (l.rows() == 0) std::fill_n(tile.result, channels.size() * columns.size(), A(0));
      for_each_part({0, l.rows()}, depth, [&](Range rows) {
        const Filter<F> f = blocks.at(group, channels, rows);
        const A keep = direct.data != nullptr ? beta : rows.begin == 0 ? A(0) : A(1);
        for_each_part(columns, even_part(columns.size(), width), [&](Range part) {
          const std::int64_t at = part.begin - columns.begin;
          if (nchw) {
            // A copy is worth it also for a pointwise product: rows of x lie in different pages, in which
            // OpenBLAS would read single cache lines.
            const std::int64_t gap = part.size() + kGap;
            gather_columns(l, source, group, rows, part, tile.columns, gap);
            multiply_wide<F, A>(f.by_rows ? Transpose::yes : Transpose::no, channels.size(), part.size(),
                                rows.size(), alpha, f.matrix, {tile.columns, gap}, keep, place.data + at,
                                place.stride);
          } else {
            const Matrix<F> c = columns_of(l, source, group, rows, part, tile.columns);
            multiply_tall<F, A>(f.by_rows ? Transpose::no : Transpose::yes, part.size(), channels.size(),
                                rows.size(), alpha, c, f.matrix, keep, place.data + at * place.stride,
                                place.stride);
          }
        });
      });
      if (direct.data == nullptr) {
        store(l, tile.result, place.stride, group, channels, columns, beta, result);
      }
    }
  });
}

// Computes backward_filter. A tile is some rows of the filter's gradient, summed over all positions.
template <typename S, typename F, typename A>
void multiply_gradient(const Lowering& l, const Lowering& g, const S* x, const S* y, A alpha, A beta, S* w) {
  const std::int64_t fair = std::max<std::int64_t>(16, ceil_div(l.rows(), threads()));
  const std::int64_t row_part = even_part(l.rows(), std::min(most_rows<F>(l), fair));
  const std::int64_t row_parts = ceil_div(l.rows(), row_part);
  const std::int64_t channel_part =
      even_part(l.result_channels, std::min(kChannels, Tile<F, A>::kResult / row_part));
  const std::int64_t channel_parts = ceil_div(l.result_channels, channel_part);
  const ColumnParts column_parts(
      l, std::min(Tile<F, A>::kColumns / row_part, Tile<F, A>::kFactor / channel_part));
  const bool nchw = l.layout == Layout::nchw;

  parallel_for(l.groups * channel_parts * row_parts, [&](std::int64_t begin, std::int64_t end) {
    const Tile<F, A> tile = tile_of_this_thread<F, A>();
    for (std::int64_t index = begin; index < end; ++index) {
      const std::int64_t group = index / row_parts / channel_parts;
      const std::int64_t channel = index / row_parts % channel_parts * channel_part;
      const std::int64_t row = index % row_parts * row_part;
      const Range channels{channel, std::min(l.result_channels, channel + channel_part)};
      const Range rows{row, std::min(l.rows(), row + row_part)};
      for (std::int64_t i = 0; i < column_parts.count(); ++i) {
        const Matrix<F> c = columns_of(l, x, group, rows, column_parts[i], tile.columns);
        const Matrix<F> d = columns_of(g, y, group, channels, column_parts[i], tile.factor);
        const A keep = i == 0 ? A(0) : A(1);
        if (nchw) {
          multiply_flat<F, A>(channels.size(), rows.size(), column_parts[i].size(), alpha, d, c, keep,
                              tile.result);
        } else {
          multiply_long<F, A>(channels.size(), rows.size(), column_parts[i].size(), alpha, d, c, keep,
                              tile.result);
        }
      }
      store_gradient(l, tile.result, group, channels, rows, beta, w);
    }
  });
}

// Returns whether a product on AMX, which fills its registers with zeros up to 16 × 32 values, takes less
// time than one in fp32.
bool fills_registers(const Problem& p) {
  const std::int64_t taps = p.kernel[0] * p.kernel[1] * p.kernel[2];
  return std::max(p.in_channels, p.out_channels) / p.groups * taps >= kFewestTerms;
}

template <typename S, typename F, typename A>
void run(const Kernel& kernel, const Tensors& tensors, double alpha, double beta) {
  S* x = static_cast<S*>(tensors.x);
  S* w = static_cast<S*>(tensors.w);
  S* y = static_cast<S*>(tensors.y);
  const A a = static_cast<A>(alpha), b = static_cast<A>(beta);
  if (kernel.pass == Pass::backward_filter) {
    return for_each_gradient(kernel.problem, tensors.pitch, [&](const Lowering& l, const Lowering& g) {
      multiply_gradient<S, F, A>(l, g, x, y, a, b, w);
    });
  }
  const bool forward = kernel.pass == Pass::forward;
  for_each_lowering(kernel, tensors.pitch, [&](const Lowering& l) {
    multiply<S, F, A>(l, forward ? x : y, w, a, b, forward ? y : x);
  });
}

}  // namespace

std::optional<std::size_t> workspace_size(const Kernel&) { return 0; }

void convolve(const Kernel& kernel, const Tensors& tensors, double alpha, double beta, void*) {
  if (depthwise::takes(kernel)) return depthwise::convolve(kernel, tensors, alpha, beta);
  if (scattering::takes(kernel)) return scattering::convolve(kernel, tensors, alpha, beta);
  switch (kernel.problem.data_type) {
    case DataType::f32:
      return run<float, float, float>(kernel, tensors, alpha, beta);
    case DataType::f64:
      return run<double, double, double>(kernel, tensors, alpha, beta);
    case DataType::f16:
      return run<Half, float, float>(kernel, tensors, alpha, beta);
    case DataType::bf16:
      if (fills_registers(kernel.problem) && transforms::bfloat16_product() != nullptr) {
        return run<BFloat16, BFloat16, float>(kernel, tensors, alpha, beta);
      }
      return run<BFloat16, float, float>(kernel, tensors, alpha, beta);
  }
}

}  // namespace mucudnn::host::implicit_gemm
