#include "host/spectral.hpp"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "host/blas.hpp"
#include "host/correlation.hpp"
#include "host/forks.hpp"
#include "host/lowering.hpp"
#include "host/parallel.hpp"

namespace mucudnn::host::spectral {
namespace {

using transforms::block_channels;
using transforms::FilterBlock;
using transforms::ImageBlock;
using transforms::Spectrum;

// Returns one thread's memory for packed pixels, aligned to 64 bytes.
float* scratch(std::int64_t floats) {
  thread_local std::vector<float> memory;
  const auto size = static_cast<std::size_t>(floats + Planes::line_floats);
  if (memory.size() < size) memory.resize(size);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  return reinterpret_cast<float*>((address + 63) / 64 * 64);
}

class Convolution {
 public:
  Convolution(const Method& method, const Kernel& kernel, const Tensors& tensors, float* workspace)
      : method_(method), problem_(kernel.problem), pass_(kernel.pass), shape_(kernel, method.tile_size) {
    const std::int64_t planes = method.real_planes + 2 * method.complex_planes;
    in_ = {workspace, shape_.in_planes.plane_stride(), shape_.in_planes.row_stride};
    out_ = {in_.data + planes * in_.plane_stride, shape_.out_planes.plane_stride(),
            shape_.out_planes.row_stride};
    filter_ = {out_.data + planes * out_.plane_stride, shape_.filter_planes.plane_stride(),
               shape_.filter_planes.row_stride};
    x_ = static_cast<float*>(tensors.x);
    w_ = static_cast<float*>(tensors.w);
    y_ = static_cast<float*>(tensors.y);
    if (pass_ == Pass::backward_data) std::swap(x_, y_);  // from here on x_ is the input and y_ the output
  }

  void run(float alpha, float beta) const {
    const auto& kernels = method_.kernels;
    for_each_block(x_, shape_.in, in_, Tiles::overlapping, kernels.analyse_image);
    if (pass_ == Pass::backward_filter) {
      for_each_block(y_, shape_.out, out_, Tiles::disjoint, kernels.analyse_gradient);
      multiply(Transpose::yes, shape_.backward_filter(), in_, out_, filter_);
      for_each_block(w_, [&](const FilterBlock& block) { kernels.synthesise_filter(block, alpha, beta); });
    } else {
      for_each_block(w_, kernels.analyse_filter);
      multiply(Transpose::no, shape_.forward(), in_, filter_, out_);
      for_each_block(y_, shape_.out, out_, Tiles::disjoint,
                     [&](const ImageBlock& block) { kernels.synthesise_image(block, alpha, beta); });
    }
  }

 private:
  enum class Tiles { overlapping, disjoint };

  // Calls body(block) for blocks of channels of all images, in bands of tile rows so short that their pixels
  // stay in the cache.
  template <typename Body>
  void for_each_block(float* data, const Correlation::Stack& image, const Spectrum& spectrum, Tiles tiles,
                      Body&& body) const {
    ImageBlock whole{};
    const bool channels_last = problem_.layout == Layout::nhwc;
    const std::int64_t pixels = image.height * image.width;
    whole.channel_stride = channels_last ? 1 : image.depth * pixels;
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
    const std::int64_t bands = ceil_div(shape_.tile_rows, band_rows);
    const std::int64_t blocks = spectrum.row_stride / block_channels;
    const std::int64_t packed_pixels = (band_rows * whole.step_height + overlap + 1) * image.width;
    const std::int64_t tile_row_columns = shape_.tile_columns * whole.step_width + method_.tile_size;
    const std::int64_t scratch_floats =
        block_channels * (packed_pixels + method_.tile_size * tile_row_columns);

    parallel_for(
        problem_.mini_batch * image.depth * blocks * bands, [&](std::int64_t begin, std::int64_t end) {
          ImageBlock block = whole;
          block.scratch = scratch(scratch_floats);
          for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t stacked = i / (blocks * bands), channel = i / bands % blocks * block_channels;
            const std::int64_t n = stacked / image.depth, z = stacked % image.depth;
            block.first_row = i % bands * band_rows;
            block.last_row = std::min(block.first_row + band_rows, shape_.tile_rows);
            block.channels = std::min(block_channels, image.channels - channel);
            block.image = data + n * image.channels * image.depth * pixels + channel * block.channel_stride +
                          z * pixels * block.pixel_stride;
            const std::int64_t tile = stacked * shape_.image_tiles + block.first_row * shape_.tile_columns;
            block.spectrum = spectrum;
            block.spectrum.data += tile * spectrum.row_stride + channel;
            body(block);
          }
        });
  }

  // Calls body(block) for blocks of output channels and ranges of input channels, for each tap of the
  // filter's depth.
  template <typename Body>
  void for_each_block(float* data, Body&& body) const {
    const std::int64_t depth = problem_.kernel[0], taps = problem_.kernel[1] * problem_.kernel[2];
    const bool channels_last = problem_.layout == Layout::nhwc;
    FilterBlock whole{};
    whole.out_stride = problem_.in_channels * depth * taps;
    whole.in_stride = channels_last ? 1 : depth * taps;
    whole.tap_stride = channels_last ? problem_.in_channels : 1;
    whole.rotated = pass_ == Pass::backward_data;
    if (whole.rotated) std::swap(whole.out_stride, whole.in_stride);
    whole.height = problem_.kernel[1];
    whole.width = problem_.kernel[2];

    constexpr std::int64_t run_channels = 16;
    const std::int64_t runs = ceil_div(shape_.in.channels, run_channels);
    const std::int64_t blocks = filter_.row_stride / block_channels;
    parallel_for(depth * runs * blocks, [&](std::int64_t begin, std::int64_t end) {
      FilterBlock block = whole;
      block.scratch = scratch(block_channels * run_channels * taps);
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t in = i / blocks % runs * run_channels, out = i % blocks * block_channels;
        const std::int64_t tap = i / (blocks * runs), slice = whole.rotated ? depth - 1 - tap : tap;
        block.in_channels = std::min(run_channels, shape_.in.channels - in);
        block.out_channels = std::min(block_channels, shape_.out.channels - out);
        block.filter = data + in * block.in_stride + out * block.out_stride + slice * taps * block.tap_stride;
        block.spectrum = filter_;
        block.spectrum.data += (tap * shape_.in.channels + in) * filter_.row_stride + out;
        body(block);
      }
    });
  }

  // Computes all products in every plane. A complex plane takes four real products.
  void multiply(Transpose transpose, const std::vector<Product>& products, const Spectrum& a,
                const Spectrum& b, const Spectrum& c) const {
    const auto add = [&](const NoFork& no_fork, float sign, const float* a_plane, const float* b_plane,
                         bool adds, float* c_plane) {
      for (const Product& p : products) {
        multiply(no_fork, transpose, p, sign, a_plane, a.row_stride, b_plane, b.row_stride, adds, c_plane,
                 c.row_stride);
      }
    };
    const std::int64_t reals = method_.real_planes;
    parallel_for(reals + method_.complex_planes, [&](std::int64_t begin, std::int64_t end) {
      const NoFork no_fork;
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t plane = i < reals ? i : reals + 2 * (i - reals);
        const float *a_re = a.data + plane * a.plane_stride, *a_im = a_re + a.plane_stride;
        const float *b_re = b.data + plane * b.plane_stride, *b_im = b_re + b.plane_stride;
        float *c_re = c.data + plane * c.plane_stride, *c_im = c_re + c.plane_stride;
        add(no_fork, 1, a_re, b_re, false, c_re);
        if (i < reals) continue;
        add(no_fork, 1, a_im, b_im, true, c_re);
        add(no_fork, 1, a_im, b_re, false, c_im);
        add(no_fork, -1, a_re, b_im, true, c_im);
      }
    });
  }

  static void multiply(const NoFork& no_fork, Transpose transpose, const Product& p, float sign,
                       const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride,
                       bool adds, float* c, std::int64_t n) {
    adds = adds || p.adds;
    c += p.c_row * n;
    if (p.m == 0 || p.k == 0) {
      if (!adds) std::fill_n(c, p.m * n, 0.f);
      return;
    }
    a += p.a_row * a_stride;
    b += p.b_row * b_stride;
    // OpenBLAS's AVX-512 code multiplies matrices of up to 10^6 multiplications without copying them first.
    // This is faster at the sizes of spectra. On other processors each call copies, so that fewer calls are
    // better.
    const bool small = std::string_view(transforms::instruction_set()) == "avx512";
    const std::int64_t n_block = small ? std::min<std::int64_t>(n, 64) : n;
    const std::int64_t k_block = small ? std::min<std::int64_t>(p.k, 128) : p.k;
    const std::int64_t m_block = small ? 1'000'000 / (n_block * k_block) : p.m;
    for (std::int64_t kk = 0; kk < p.k; kk += k_block) {
      for (std::int64_t nn = 0; nn < n; nn += n_block) {
        for (std::int64_t mm = 0; mm < p.m; mm += m_block) {
          const float* a_block = a + (transpose == Transpose::yes ? kk * a_stride + mm : mm * a_stride + kk);
          gemm(transpose, Transpose::no, std::min(m_block, p.m - mm), std::min(n_block, n - nn),
               std::min(k_block, p.k - kk), sign, a_block, a_stride, b + kk * b_stride + nn, b_stride,
               adds || kk > 0 ? 1.f : 0.f, c + mm * n + nn, n, no_fork);
        }
      }
    }
  }

  const Method& method_;
  const Problem& problem_;
  const Pass pass_;
  const Correlation shape_;
  Spectrum in_, out_, filter_;
  float *x_, *w_, *y_;
};

}  // namespace

std::optional<std::size_t> workspace_size(const Method& method, const Kernel& kernel) {
  const Problem& p = kernel.problem;
  if (p.data_type != DataType::f32 || p.groups != 1) return std::nullopt;
  for (int axis = 0; axis < 3; ++axis) {
    if (p.stride[axis] != 1 || p.dilation[axis] != 1) return std::nullopt;
    if (kernel.pass == Pass::backward_data && p.padding[axis] >= p.kernel[axis]) return std::nullopt;
  }
  const Correlation shape(kernel, method.tile_size);
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

void convolve(const Method& method, const Kernel& kernel, const Tensors& tensors, double alpha, double beta,
              void* workspace) {
  Convolution(method, kernel, tensors, static_cast<float*>(workspace))
      .run(static_cast<float>(alpha), static_cast<float>(beta));
}

}  // namespace mucudnn::host::spectral
