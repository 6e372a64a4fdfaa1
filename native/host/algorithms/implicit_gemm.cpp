#include <array>

#include "core/half.hpp"
#include "host/algorithms/algorithms.hpp"
#include "host/algorithms/block_products.hpp"
#include "host/lowering/filters.hpp"
#include "host/lowering/im2col.hpp"
#include "host/threads/parallel.hpp"
#include "host/threads/thread_memory.hpp"
#include "host/transforms/transforms.hpp"

namespace mucudnn::host {
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

// Returns some columns of a tensor, from one channel on, as a matrix in the tensor; null if they are not a
// matrix there. `channels` are those that the tensor has in memory, `plane` values apart in NCHW.
template <typename A>
Matrix<A> place_in_tensor(Layout layout, A* tensor, std::int64_t channels, std::int64_t channel,
                          std::int64_t positions, std::int64_t plane, Range columns) {
  const std::int64_t image = columns.begin / positions, first = columns.begin % positions;
  if (layout == Layout::nhwc && fits_blas(channels)) {
    return {tensor + columns.begin * channels + channel, channels};
  }
  if (layout == Layout::nchw && first + columns.size() <= positions && fits_blas(plane)) {
    return {tensor + (image * channels + channel) * plane + first, plane};
  }
  return {nullptr, 0};
}

// Returns the columns. The source of a pointwise product can be its own columns, without a copy.
template <typename S, typename F>
Matrix<const F> columns_of(const Lowering& l, const S* source, std::int64_t group, Range rows, Range columns,
                           F* buffer) {
  if constexpr (std::is_same_v<S, F>) {
    if (l.is_pointwise()) {
      const auto place =
          place_in_tensor(l.layout, source, l.source_pitch, group * l.source_channels + rows.begin,
                          l.positions(), l.source_plane, columns);
      if (place.data != nullptr) return place;
    }
  }
  const std::int64_t stride = l.layout == Layout::nchw ? columns.size() : rows.size();
  gather_columns(l, source, group, rows, columns, buffer, stride);
  return {buffer, stride};
}

// A block of the filter: channels × rows, or rows × channels.
template <typename F>
struct Filter {
  Matrix<const F> matrix;
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
        buffer[row * channels.size() + i] = converted<F>(first[i * l.rows() + row]);
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

// Returns the place of a product's result in the tensor. Null if the result is not a matrix there, or is a
// sum of several products: then it goes to the thread's tile first.
template <typename S, typename A>
Matrix<A> place_of(const Lowering& l, S* result, std::int64_t group, Range channels, Range columns) {
  if constexpr (std::is_same_v<S, A>) {
    if (l.is_whole() && l.rows() > 0 && l.rows() <= kDepth) {
      return place_in_tensor(l.layout, result, l.result_pitch, group * l.result_channels + channels.begin,
                             l.positions(), l.result_plane, columns);
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
void multiply(const Lowering& l, const S* source, const S* filter, A alpha, A beta, const S* bias,
              S* result) {
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
      const Matrix<A> direct = place_of<S, A>(l, result, group, channels, columns);
      const Matrix<A> place =
          direct.data != nullptr ? direct : Matrix<A>{tile.result, nchw ? columns.size() : channels.size()};
      if (l.rows() == 0) std::fill_n(tile.result, channels.size() * columns.size(), A(0));
      for_each_part({0, l.rows()}, depth, [&](Range rows) {
        const Filter<F> f = blocks.at(group, channels, rows);
        const A* added = nullptr;  // the bias of a product that is written to the tensor
        if constexpr (std::is_same_v<S, A>) {
          if (direct.data != nullptr && bias != nullptr)
            added = bias + group * l.result_channels + channels.begin;
        }
        const A keep = direct.data != nullptr ? beta : rows.begin == 0 ? A(0) : A(1);
        for_each_part(columns, even_part(columns.size(), width), [&](Range part) {
          const std::int64_t at = part.begin - columns.begin;
          if (nchw) {
            // A copy pays off for a pointwise product too, because rows of x lie in different pages, from
            // which OpenBLAS would read single cache lines.
            const std::int64_t gap = part.size() + kGap;
            gather_columns(l, source, group, rows, part, tile.columns, gap);
            multiply_wide<F, A>({f.by_rows ? Transpose::yes : Transpose::no,
                                 Transpose::no,
                                 channels.size(),
                                 part.size(),
                                 rows.size(),
                                 alpha,
                                 f.matrix,
                                 {tile.columns, gap},
                                 keep,
                                 {place.data + at, place.stride}},
                                added);
          } else {
            const Matrix<const F> c = columns_of(l, source, group, rows, part, tile.columns);
            const Matrix<A> to{place.data + at * place.stride, place.stride};
            if (added != nullptr) {
              fill_with_bias(l.layout, added, channels.size(), part.size(), to.data, to.stride);
            }
            multiply_tall<F, A>({Transpose::no, f.by_rows ? Transpose::no : Transpose::yes, part.size(),
                                 channels.size(), rows.size(), alpha, c, f.matrix,
                                 added != nullptr ? A(1) : keep, to});
          }
        });
      });
      if (direct.data == nullptr) {
        store(l, tile.result, place.stride, group, channels, columns, beta, bias, result);
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
        const Matrix<const F> c = columns_of(l, x, group, rows, column_parts[i], tile.columns);
        const Matrix<const F> d = columns_of(g, y, group, channels, column_parts[i], tile.factor);
        const Product<F, A> product{nchw ? Transpose::no : Transpose::yes,
                                    nchw ? Transpose::yes : Transpose::no,
                                    channels.size(),
                                    rows.size(),
                                    column_parts[i].size(),
                                    alpha,
                                    d,
                                    c,
                                    i == 0 ? A(0) : A(1),
                                    {tile.result, rows.size()}};
        nchw ? multiply_flat(product) : multiply_long(product);
      }
      store_gradient(l, tile.result, group, channels, rows, beta, w);
    }
  });
}

constexpr std::int64_t kFewestTerms = 16;  // with fewer, most of an AMX register would be zeros

// Returns whether a product on AMX, which fills its registers with zeros up to 16 × 32 values, takes less
// time than one in fp32.
bool fills_registers(const Problem& p) {
  const std::int64_t taps = p.kernel[0] * p.kernel[1] * p.kernel[2];
  return std::max(p.in_channels, p.out_channels) / p.groups * taps >= kFewestTerms;
}

template <typename S, typename F, typename A>
void run(const Kernel& kernel, const Tensors& tensors, double alpha, double beta) {
  const A a = static_cast<A>(alpha), b = static_cast<A>(beta);
  run_lowered<S>(
      kernel, tensors,
      [=](const Lowering& l, const S* source, const S* filter, const S* bias, S* result) {
        multiply<S, F, A>(l, source, filter, a, b, bias, result);
      },
      [=](const Lowering& l, const Lowering& g, const S* x, const S* y, S* w) {
        multiply_gradient<S, F, A>(l, g, x, y, a, b, w);
      });
}

std::optional<std::size_t> workspace_size(const Kernel&, int) { return 0; }

void multiply(const Kernel& kernel, const Tensors& tensors, double alpha, double beta) {
  with_type(kernel.problem.data_type, [&](auto stored) {
    using S = decltype(stored);
    if constexpr (std::is_same_v<S, BFloat16>) {
      if (fills_registers(kernel.problem) && transforms::bfloat16_product() != nullptr)
        return run<S, S, float>(kernel, tensors, alpha, beta);
    }
    using A = std::conditional_t<is_16_bit<S>, float, S>;
    run<S, A, A>(kernel, tensors, alpha, beta);
  });
}

void convolve(const Kernel& kernel, const Tensors& tensors, double alpha, double beta, void*, int) {
  const bool is_whole = !tensors.pitch.has_rows();  // the other parts read whole samples
  if (is_whole && depthwise::takes(kernel)) return depthwise::convolve(kernel, tensors, alpha, beta);
  if (is_whole && scattering::takes(kernel)) return scattering::convolve(kernel, tensors, alpha, beta);
  multiply(kernel, tensors, alpha, beta);
}

}  // namespace

const Implementation kImplicitGemm{workspace_size, convolve, nullptr, nullptr};

}  // namespace mucudnn::host
