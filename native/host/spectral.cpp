#include "host/spectral.hpp"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "host/blas.hpp"
#include "host/parallel.hpp"

namespace mucudnn::host::spectral {
namespace {

using transforms::block_channels;
using transforms::FilterBlock;
using transforms::ImageBlock;
using transforms::Spectrum;

constexpr std::int64_t line_floats = 16;  // a cache line of 64 bytes

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t round_up(std::int64_t a, std::int64_t b) { return divide_up(a, b) * b; }

// A matrix in each plane, with rows and planes aligned to 64 bytes.
struct Planes {
  std::int64_t rows, row_stride;

  // An odd number of cache lines, so that the planes of one tile fall into different cache sets.
  std::int64_t plane_stride() const { return (rows * row_stride / line_floats | 1) * line_floats; }
};

// The correlation of `in` with the filter to `out` that a pass comes down to. For backward_data that is
// the forward correlation of y with the filter rotated to x; for backward_filter the forward one, of
// which the gradient of `out` is given and that of the filter wanted.
struct Correlation {
  struct Image {
    std::int64_t channels, height, width;
  };

  Correlation(const Method& method, Pass pass, const Problem& p) {
    in = {p.in_channels, p.input[1], p.input[2]};
    out = {p.out_channels, p.output[1], p.output[2]};
    pad_height = p.padding[1];
    pad_width = p.padding[2];
    if (pass == Pass::backward_data) {
      std::swap(in, out);
      pad_height = p.kernel[1] - 1 - pad_height;
      pad_width = p.kernel[2] - 1 - pad_width;
    }
    step_height = method.tile_size - p.kernel[1] + 1;
    step_width = method.tile_size - p.kernel[2] + 1;
    tile_rows = divide_up(out.height, step_height);
    tile_columns = divide_up(out.width, step_width);
    const std::int64_t tiles = p.mini_batch * tile_rows * tile_columns;
    in_planes = {tiles, round_up(in.channels, block_channels)};
    out_planes = {tiles, round_up(out.channels, block_channels)};
    filter_planes = {in.channels, out_planes.row_stride};
  }

  Image in, out;
  std::int64_t pad_height, pad_width;
  std::int64_t step_height, step_width;
  std::int64_t tile_rows, tile_columns;  // of one image
  Planes in_planes, out_planes, filter_planes;
};

// Room for one thread's packed pixels, aligned to 64 bytes.
float* scratch(std::int64_t floats) {
  thread_local std::vector<float> memory;
  const auto size = static_cast<std::size_t>(floats + line_floats);
  if (memory.size() < size) memory.resize(size);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  return reinterpret_cast<float*>((address + 63) / 64 * 64);
}

class Convolution {
 public:
  Convolution(const Method& method, Pass pass, const Problem& problem, const Tensors& tensors,
              float* workspace)
      : method_(method), problem_(problem), pass_(pass), shape_(method, pass, problem) {
    const std::int64_t planes = method.real_planes + 2 * method.complex_planes;
    in_ = {workspace, shape_.in_planes.plane_stride(), shape_.in_planes.row_stride};
    out_ = {in_.data + planes * in_.plane_stride, shape_.out_planes.plane_stride(),
            shape_.out_planes.row_stride};
    filter_ = {out_.data + planes * out_.plane_stride, shape_.filter_planes.plane_stride(),
               shape_.filter_planes.row_stride};
    x_ = static_cast<float*>(tensors.x);
    w_ = static_cast<float*>(tensors.w);
    y_ = static_cast<float*>(tensors.y);
    if (pass == Pass::backward_data) std::swap(x_, y_);  // from here on x_ is the input, y_ the output
  }

  void run(float alpha, float beta) const {
    const auto& kernels = method_.kernels;
    for_each_block(x_, shape_.in, in_, Tiles::overlapping, kernels.analyse_image);
    if (pass_ == Pass::backward_filter) {
      for_each_block(y_, shape_.out, out_, Tiles::disjoint, kernels.analyse_gradient);
      multiply(Transpose::yes, shape_.in.channels, shape_.in_planes.rows, in_, out_, filter_);
      for_each_block(w_, [&](const FilterBlock& block) { kernels.synthesise_filter(block, alpha, beta); });
    } else {
      for_each_block(w_, kernels.analyse_filter);
      multiply(Transpose::no, shape_.in_planes.rows, shape_.in.channels, in_, filter_, out_);
      for_each_block(y_, shape_.out, out_, Tiles::disjoint,
                     [&](const ImageBlock& block) { kernels.synthesise_image(block, alpha, beta); });
    }
  }

 private:
  enum class Tiles { overlapping, disjoint };

  // Calls body(block) for bands of tile rows, short enough for their pixels to stay in the cache, of blocks
  // of channels of all images.
  template <typename Body>
  void for_each_block(float* data, const Correlation::Image& image, const Spectrum& spectrum, Tiles tiles,
                      Body&& body) const {
    ImageBlock whole{};
    const bool channels_last = problem_.layout == Layout::nhwc;
    whole.channel_stride = channels_last ? 1 : image.height * image.width;
    whole.pixel_stride = channels_last ? image.channels : 1;
    whole.height = image.height;
    whole.width = image.width;
    whole.step_height = shape_.step_height;
    whole.step_width = shape_.step_width;
    whole.tile_height = tiles == Tiles::overlapping ? method_.tile_size : shape_.step_height;
    whole.tile_width = tiles == Tiles::overlapping ? method_.tile_size : shape_.step_width;
    whole.pad_height = tiles == Tiles::overlapping ? shape_.pad_height : 0;
    whole.pad_width = tiles == Tiles::overlapping ? shape_.pad_width : 0;
    whole.tile_columns = shape_.tile_columns;

    constexpr std::int64_t band_pixels = 1024;
    const std::int64_t overlap = whole.tile_height - whole.step_height;
    const std::int64_t band_rows = std::clamp<std::int64_t>(
        (band_pixels / image.width - overlap) / whole.step_height, 1, shape_.tile_rows);
    const std::int64_t bands = divide_up(shape_.tile_rows, band_rows);
    const std::int64_t blocks = spectrum.row_stride / block_channels;
    const std::int64_t packed_pixels = (band_rows * whole.step_height + overlap + 1) * image.width;
    const std::int64_t tile_row_columns = shape_.tile_columns * whole.step_width + method_.tile_size;
    const std::int64_t scratch_floats =
        block_channels * (packed_pixels + method_.tile_size * tile_row_columns);

    parallel_for(problem_.mini_batch * blocks * bands, [&](std::int64_t begin, std::int64_t end) {
      ImageBlock block = whole;
      block.scratch = scratch(scratch_floats);
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t n = i / (blocks * bands), channel = i / bands % blocks * block_channels;
        block.first_row = i % bands * band_rows;
        block.last_row = std::min(block.first_row + band_rows, shape_.tile_rows);
        block.channels = std::min(block_channels, image.channels - channel);
        block.image = data + n * image.channels * image.height * image.width + channel * block.channel_stride;
        const std::int64_t tile = (n * shape_.tile_rows + block.first_row) * shape_.tile_columns;
        block.spectrum = spectrum;
        block.spectrum.data += tile * spectrum.row_stride + channel;
        body(block);
      }
    });
  }

  // Calls body(block) for blocks of output channels and runs of input channels of the filter.
  template <typename Body>
  void for_each_block(float* data, Body&& body) const {
    const std::int64_t taps = problem_.kernel[1] * problem_.kernel[2];
    const bool channels_last = problem_.layout == Layout::nhwc;
    FilterBlock whole{};
    whole.out_stride = problem_.in_channels * taps;
    whole.in_stride = channels_last ? 1 : taps;
    whole.tap_stride = channels_last ? problem_.in_channels : 1;
    whole.rotated = pass_ == Pass::backward_data;
    if (whole.rotated) std::swap(whole.out_stride, whole.in_stride);
    whole.height = problem_.kernel[1];
    whole.width = problem_.kernel[2];

    constexpr std::int64_t run_channels = 16;
    const std::int64_t runs = divide_up(shape_.in.channels, run_channels);
    const std::int64_t blocks = filter_.row_stride / block_channels;
    parallel_for(runs * blocks, [&](std::int64_t begin, std::int64_t end) {
      FilterBlock block = whole;
      block.scratch = scratch(block_channels * run_channels * taps);
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t in = i / blocks * run_channels, out = i % blocks * block_channels;
        block.in_channels = std::min(run_channels, shape_.in.channels - in);
        block.out_channels = std::min(block_channels, shape_.out.channels - out);
        block.filter = data + in * block.in_stride + out * block.out_stride;
        block.spectrum = filter_;
        block.spectrum.data += in * filter_.row_stride + out;
        body(block);
      }
    });
  }

  // c = op(a) · conj(b) in every plane, with op(a) of m × k and b of k × the output channels.
  void multiply(Transpose transpose, std::int64_t m, std::int64_t k, const Spectrum& a, const Spectrum& b,
                const Spectrum& c) const {
    // OpenBLAS has AVX-512 code that multiplies matrices of up to 10^6 multiplications without copying them
    // first, the faster way at the sizes of spectra; elsewhere each call copies, and fewer are better.
    const bool small = std::string_view(transforms::instruction_set()) == "avx512";
    const std::int64_t n = c.row_stride;
    const std::int64_t n_block = small ? std::min<std::int64_t>(n, 64) : n;
    const std::int64_t k_block = small ? std::min<std::int64_t>(k, 128) : k;
    const std::int64_t m_block = small ? 1'000'000 / (n_block * k_block) : m;
    const auto product = [&](float sign, const float* a_plane, const float* b_plane, bool add,
                             float* c_plane) {
      for (std::int64_t kk = 0; kk < k; kk += k_block) {
        for (std::int64_t nn = 0; nn < n; nn += n_block) {
          for (std::int64_t mm = 0; mm < m; mm += m_block) {
            const float* a_block =
                a_plane + (transpose == Transpose::yes ? kk * a.row_stride + mm : mm * a.row_stride + kk);
            gemm(transpose, Transpose::no, std::min(m_block, m - mm), std::min(n_block, n - nn),
                 std::min(k_block, k - kk), sign, a_block, a.row_stride, b_plane + kk * b.row_stride + nn,
                 b.row_stride, add || kk > 0 ? 1.f : 0.f, c_plane + mm * c.row_stride + nn, c.row_stride);
          }
        }
      }
    };
    const std::int64_t reals = method_.real_planes;
    parallel_for(reals + method_.complex_planes, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t plane = i < reals ? i : reals + 2 * (i - reals);
        const float *a_re = a.data + plane * a.plane_stride, *a_im = a_re + a.plane_stride;
        const float *b_re = b.data + plane * b.plane_stride, *b_im = b_re + b.plane_stride;
        float *c_re = c.data + plane * c.plane_stride, *c_im = c_re + c.plane_stride;
        product(1, a_re, b_re, false, c_re);
        if (i < reals) continue;
        product(1, a_im, b_im, true, c_re);
        product(1, a_im, b_re, false, c_im);
        product(-1, a_re, b_im, true, c_im);
      }
    });
  }

  const Method& method_;
  const Problem& problem_;
  const Pass pass_;
  const Correlation shape_;
  Spectrum in_, out_, filter_;
  float *x_, *w_, *y_;
};

}  // namespace

std::optional<std::size_t> workspace_size(const Method& method, Pass pass, const Problem& p) {
  if (p.dims != 2 || p.data_type != DataType::f32 || p.groups != 1) return std::nullopt;
  for (int axis = 1; axis < 3; ++axis) {
    if (p.stride[axis] != 1 || p.dilation[axis] != 1) return std::nullopt;
    if (pass == Pass::backward_data && p.padding[axis] >= p.kernel[axis]) return std::nullopt;
  }
  const Correlation shape(method, pass, p);
  double floats = 0;
  std::int64_t plane = 0;
  for (const Planes& planes : {shape.in_planes, shape.out_planes, shape.filter_planes}) {
    floats += static_cast<double>(planes.rows) * static_cast<double>(planes.row_stride);
  }
  const std::int64_t count = method.real_planes + 2 * method.complex_planes;
  if (floats * static_cast<double>(count * sizeof(float)) > 0x1p62) return std::nullopt;
  for (const Planes& planes : {shape.in_planes, shape.out_planes, shape.filter_planes}) {
    plane += planes.plane_stride();
  }
  return static_cast<std::size_t>(plane * count) * sizeof(float);
}

void convolve(const Method& method, Pass pass, const Problem& problem, const Tensors& tensors, double alpha,
              double beta, void* workspace) {
  Convolution(method, pass, problem, tensors, static_cast<float*>(workspace))
      .run(static_cast<float>(alpha), static_cast<float>(beta));
}

}  // namespace mucudnn::host::spectral
