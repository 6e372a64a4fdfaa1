#include "host/algorithms/algorithms.hpp"
#include "host/lowering/filters.hpp"
#include "host/lowering/im2col.hpp"
#include "host/threads/parallel.hpp"

namespace mucudnn::host {
namespace {

constexpr std::int64_t kMaxElements = std::int64_t{1} << 60;  // 2^62 bytes

// The fewest columns of a product: it copies its other factor, which takes too long for fewer.
constexpr std::int64_t kColumns = 2048;
constexpr std::int64_t kGradientColumns = 512;

// Sizes of the workspace's parts in elements. One group after the other uses the parts.
struct Parts {
  std::int64_t columns = 0, factor = 0, result = 0;

  std::int64_t total() const { return columns + factor + result; }
};

// Returns a * b, rounded up so that each part starts on a cache line. Beyond kMaxElements the value is only a
// larger one.
std::int64_t elements(std::int64_t a, std::int64_t b) {
  std::int64_t product;
  if (__builtin_mul_overflow(a, b, &product) || product > kMaxElements) return kMaxElements + 1;
  return (product + 15) / 16 * 16;
}

// Returns whether a product can write its result, or read y, directly in the tensor.
bool in_place(const Lowering& l) {
  return l.is_whole() && l.rows() > 0 && (l.layout == Layout::nhwc || l.mini_batch == 1);
}

// Returns how many columns the workspace holds at a time.
std::int64_t columns_at_once(const Lowering& l, int tile_size) {
  return ceil_div(l.columns(), std::int64_t{1} << tile_size);
}

Parts parts_of(const Lowering& l, int tile_size) {
  const std::int64_t columns = columns_at_once(l, tile_size);
  Parts parts;
  parts.columns = elements(l.rows(), columns);
  if (!l.filter_in_order()) parts.factor = elements(l.rows(), l.result_channels);
  if (!in_place(l)) parts.result = elements(l.result_channels, columns);
  return parts;
}

Parts gradient_parts_of(const Lowering& l, const Lowering& g, int tile_size) {
  const std::int64_t columns = columns_at_once(l, tile_size);
  Parts parts;
  parts.columns = elements(l.rows(), columns);
  if (!in_place(g)) parts.factor = elements(g.rows(), columns);
  if (!l.filter_in_order()) parts.result = elements(g.rows(), l.rows());
  return parts;
}

bool fits_blas(const Lowering& l) {
  return host::fits_blas(l.rows()) && host::fits_blas(l.columns()) &&
         host::fits_blas(l.result_channels * l.groups) && host::fits_blas(l.source_channels * l.groups);
}

void multiply(const Lowering& l, const float* source, const float* filter, float alpha, float beta,
              const float* bias, float* result, float* workspace, int tile_size) {
  const Parts parts = parts_of(l, tile_size);
  float* columns = workspace;
  float* packed_filter = columns + parts.columns;
  float* product = packed_filter + parts.factor;
  const bool nchw = l.layout == Layout::nchw, direct = in_place(l);
  const std::int64_t m = l.result_channels, k = l.rows(), n = columns_at_once(l, tile_size);
  const std::int64_t column_stride = nchw ? n : k;
  const std::int64_t direct_stride = nchw ? l.result_plane : l.result_pitch;
  const std::int64_t result_stride = direct ? direct_stride : nchw ? n : m;
  const std::int64_t result_step = nchw ? 1 : result_stride;

  for (std::int64_t group = 0; group < l.groups; ++group) {
    const float* f = filter + group * m * k;
    if (!l.filter_in_order()) {
      gather_filter(l, filter, group, {0, m}, {0, k}, packed_filter, l.transposed ? m : k);
      f = packed_filter;
    }
    if (k == 0) std::fill_n(product, m * n, 0.0f);  // no tap touches these positions
    for_each_part({0, l.columns()}, n, [&](Range part) {
      float* const to =
          direct ? result + group * m * (nchw ? l.result_plane : 1) + part.begin * result_step : product;
      const auto multiply_columns = [&](std::int64_t begin, std::int64_t end) {
        const Range range{part.begin + begin, part.begin + end};
        float* c = columns + begin * (nchw ? 1 : k);
        gather_columns(l, source, group, {0, k}, range, c, column_stride);
        const bool fills = direct && bias != nullptr;
        if (fills) {
          fill_with_bias(l.layout, bias + group * m, m, range.size(), to + begin * result_step,
                         result_stride);
        }
        const float keep = fills ? 1 : direct ? beta : 0;
        if (k == 0) {
          // The fill above has written the zeros.
        } else if (nchw) {
          gemm(l.transposed ? Transpose::yes : Transpose::no, Transpose::no, m, range.size(), k, alpha, f,
               l.transposed ? m : k, c, n, keep, to + begin, result_stride);
        } else {
          gemm(Transpose::no, l.transposed ? Transpose::no : Transpose::yes, range.size(), m, k, alpha, c, k,
               f, l.transposed ? m : k, keep, to + begin * result_step, result_stride);
        }
        if (!direct)
          store(l, to + begin * result_step, result_stride, group, {0, m}, range, beta, bias, result);
      };
      parallel_for(part.size(), multiply_columns, kColumns);
    });
  }
}

void multiply_gradient(const Lowering& l, const Lowering& g, const float* x, const float* y, float alpha,
                       float beta, float* w, float* workspace, int tile_size) {
  const Parts parts = gradient_parts_of(l, g, tile_size);
  float* columns = workspace;
  float* packed_y = columns + parts.columns;
  float* product = packed_y + parts.factor;
  const bool nchw = l.layout == Layout::nchw, direct = in_place(g), whole = l.filter_in_order();
  const std::int64_t m = l.result_channels, k = l.rows(), n = columns_at_once(l, tile_size);
  const std::int64_t y_channels = direct ? g.source_pitch : m;
  const std::int64_t y_step = nchw ? 1 : y_channels;
  const std::int64_t y_stride = !nchw ? y_channels : direct ? g.source_plane : n;

  for (std::int64_t group = 0; group < l.groups; ++group) {
    float* const to = whole ? w + group * m * k : product;
    for_each_part({0, l.columns()}, n, [&](Range part) {
      parallel_for(part.size(), [&](std::int64_t begin, std::int64_t end) {
        const Range range{part.begin + begin, part.begin + end};
        gather_columns(l, x, group, {0, k}, range, columns + begin * (nchw ? 1 : k), nchw ? n : k);
        if (!direct) gather_columns(g, y, group, {0, m}, range, packed_y + begin * y_step, y_stride);
      });
      const float* d = direct ? y + group * m * (nchw ? g.source_plane : 1) + part.begin * y_step : packed_y;
      const float keep = part.begin > 0 ? 1 : whole ? beta : 0;
      const auto multiply_columns = [&](std::int64_t begin, std::int64_t end) {
        const float* c = columns + begin * (nchw ? n : 1);
        gemm(nchw ? Transpose::no : Transpose::yes, nchw ? Transpose::yes : Transpose::no, m, end - begin,
             part.size(), alpha, d, y_stride, c, nchw ? n : k, keep, to + begin, k);
      };
      parallel_for(k, multiply_columns, kGradientColumns);
    });
    if (!whole) store_gradient(l, product, group, {0, m}, {0, k}, beta, w);
  }
}

std::optional<std::size_t> workspace_size(const Kernel& kernel, int tile_size) {
  const Problem& problem = kernel.problem;
  if (problem.data_type != DataType::f32) return std::nullopt;
  std::int64_t most = 0;
  bool fits = true;
  const auto consider = [&](const Lowering& l, const Parts& parts) {
    const std::int64_t total = parts.total();
    fits = fits && total <= kMaxElements && fits_blas(l);
    most = std::max(most, total);
  };
  if (kernel.pass == Pass::backward_filter) {
    for_each_gradient(problem, {}, [&](const Lowering& l, const Lowering& g) {
      consider(l, gradient_parts_of(l, g, tile_size));
    });
  } else {
    for_each_lowering(kernel, {}, [&](const Lowering& l) { consider(l, parts_of(l, tile_size)); });
  }
  if (!fits) return std::nullopt;
  return static_cast<std::size_t>(most) * sizeof(float);
}

void convolve(const Kernel& kernel, const Tensors& tensors, double alpha, double beta, void* workspace,
              int tile_size) {
  auto* const scratch = static_cast<float*>(workspace);
  const auto a = static_cast<float>(alpha), b = static_cast<float>(beta);
  run_lowered<float>(
      kernel, tensors,
      [=](const Lowering& l, const float* source, const float* filter, const float* bias, float* result) {
        multiply(l, source, filter, a, b, bias, result, scratch, tile_size);
      },
      [=](const Lowering& l, const Lowering& g, const float* x, const float* y, float* w) {
        multiply_gradient(l, g, x, y, a, b, w, scratch, tile_size);
      });
}

}  // namespace

const Implementation kExplicitGemm{workspace_size, convolve, nullptr, nullptr};

}  // namespace mucudnn::host
