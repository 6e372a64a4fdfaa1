#include "host/algorithms/spectral.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "host/algorithms/correlation.hpp"
#include "host/algorithms/spectral_products.hpp"
#include "host/lowering/lowering.hpp"
#include "host/lowering/values.hpp"
#include "host/threads/parallel.hpp"
#include "host/threads/thread_memory.hpp"

namespace mucudnn::host::spectral {
namespace {

using transforms::block_channels;
using transforms::FilterBlock;
using transforms::ImageBlock;
using transforms::Spectrum;

// Returns one thread's memory for packed pixels, aligned to 64 bytes.
float* scratch(std::int64_t floats) {
  const auto size = static_cast<std::size_t>(floats + Planes::line_floats) * sizeof(float);
  return static_cast<float*>(line_memory_of_this_thread(size));
}

// Returns the floats of one plane of spectra.
std::int64_t size(const Planes& planes) { return planes.rows * planes.row_stride; }

// A thread computes output channels on its own only if it gets at least this many blocks of 16.
constexpr std::int64_t least_share = 2;

// In front of a kept filter: the number of shares into which its spectra are divided.
constexpr std::int64_t header_floats = Planes::line_floats;

std::int64_t planes_of(const Method& method) { return method.real_planes + 2 * method.complex_planes; }

// Returns the sizes of the pass. If the spectra of the filter are larger than the caches, the output channels
// are divided into parts whose filter spectra fit. Each part reads the spectra of `in` once more, so the
// number of parts is limited to keep these reads together below the size of all spectra of the filter. Larger
// parts have an even number of blocks, so that two threads get equal shares.
Correlation shape_of(const Method& method, const Kernel& kernel) {
  constexpr std::int64_t cached = std::int64_t{1} << 20;  // floats
  Correlation shape(kernel, method.tile_height, method.tile_width);
  const std::int64_t in = size(shape.in_planes);
  const std::int64_t parts =
      (size(shape.filter_planes) - in) / std::max<std::int64_t>(cached / planes_of(method), in);
  if (parts <= 1) return shape;
  const std::int64_t blocks = ceil_div(ceil_div(shape.out.channels, parts), block_channels);
  shape.divide_outputs((blocks < 2 * least_share ? blocks : ceil_div(blocks, 2) * 2) * block_channels);
  return shape;
}

// Returns the floats of the filter's spectra of one part.
std::int64_t part_floats(const Method& method, const Correlation& shape) {
  return planes_of(method) * shape.filter_planes.plane_stride();
}

// S is the type in the tensors.
template <typename S>
class Convolution {
 public:
  Convolution(const Method& method, const Kernel& kernel, const Tensors& tensors, float* workspace)
      : method_(method), problem_(kernel.problem), pass_(kernel.pass), shape_(shape_of(method, kernel)) {
    const std::int64_t planes = planes_of(method);
    in_ = {workspace, shape_.in_planes.plane_stride(), shape_.in_planes.row_stride};
    out_ = {in_.data + planes * in_.plane_stride, shape_.out_planes.plane_stride(),
            shape_.out_planes.row_stride};
    filter_ = {out_.data + planes * out_.plane_stride, shape_.filter_planes.plane_stride(),
               shape_.filter_planes.row_stride};
    w_ = static_cast<S*>(tensors.w);
    in_images_ = {static_cast<S*>(tensors.x), tensors.pitch.of_x(problem_),
                  tensors.pitch.plane_of_x(problem_)};
    out_images_ = {static_cast<S*>(tensors.y), tensors.pitch.of_y(problem_),
                   tensors.pitch.plane_of_y(problem_)};
    if (pass_ == Pass::backward_data) std::swap(in_images_, out_images_);
    bias_ = bias_in_fp32<S>(tensors.bias, problem_.out_channels);
    along_ = choose_along();
    const auto* const header = static_cast<const std::int64_t*>(tensors.kept_filter);
    if (header != nullptr && *header == most_shares()) keep_in(const_cast<void*>(tensors.kept_filter));
  }

  void run(float alpha, float beta) const {
    for_each_block(in_images_, shape_.in, in_, Tiles::overlapping, Access::read,
                   method_.kernels.analyse_image);
    for_each_share([&](const Part& share) { run_steps(share, alpha, beta); });
  }

  // Writes the spectra of the filter behind a header.
  void keep_filter(void* kept) {
    *static_cast<std::int64_t*>(kept) = most_shares();
    keep_in(kept);
    for_each_share([&](const Part& share) { analyse_filter(share); });
  }

 private:
  enum class Tiles { overlapping, disjoint };
  enum class Access { read, write, update };

  // A tensor of images: the channels that it has in memory, and the pixels from one to the next if they come
  // first.
  struct Images {
    S* data;
    std::int64_t channels, plane;
  };

  // Some output channels, and the memory for their spectra.
  struct Part {
    std::int64_t first, channels;
    Spectrum out, filter;
  };

  // Calls body(share) for the shares of all parts. If the filter's spectra are the larger ones, each thread
  // computes its share of the channels from beginning to end, because two cores without a common cache would
  // otherwise spend most of the time on cache lines that the other wrote.
  template <typename Body>
  void for_each_share(const Body& body) const {
    Spectrum filter = filter_;
    for (std::int64_t first = 0; first < shape_.out.channels; first += shape_.part_channels) {
      const Part part{first, std::min(shape_.part_channels, shape_.out.channels - first), out_, filter};
      if (is_kept_) filter.data += part_floats(method_, shape_);
      const std::int64_t blocks = ceil_div(part.channels, block_channels), shares = most_shares();
      if (shares == 1 || blocks < shares * least_share) {
        body(part);
        continue;
      }
      parallel_for(shares, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          body(share_of(part, blocks * i / shares, blocks * (i + 1) / shares));
        }
      });
    }
  }

  std::int64_t most_shares() const { return along_ == Along::out_channels ? threads() : 1; }

  // From here on the spectra of the filter are behind the header of `kept`, part by part.
  void keep_in(void* kept) {
    filter_.data = static_cast<float*>(kept) + header_floats;
    is_kept_ = true;
  }

  void analyse_filter(const Part& part) const {
    for_each_block(part, Access::read, method_.kernels.analyse_filter);
  }

  // Returns the share that has the blocks of channels [first, last). The spectra of a share are contiguous in
  // each plane: if each row had columns of two threads, the hardware would prefetch lines of the other
  // thread's columns.
  Part share_of(const Part& part, std::int64_t first, std::int64_t last) const {
    const std::int64_t channel = first * block_channels, stride = (last - first) * block_channels;
    const auto spectrum = [&](const Spectrum& whole, const Planes& planes) {
      return Spectrum{whole.data + planes.rows * channel, whole.plane_stride, stride};
    };
    return {part.first + channel, std::min(stride, part.channels - channel),
            spectrum(part.out, shape_.out_planes), spectrum(part.filter, shape_.filter_planes)};
  }

  // Runs the pass for the output channels of the part, one step after the other. The spectra of `in` must be
  // there.
  void run_steps(const Part& part, float alpha, float beta) const {
    const auto& kernels = method_.kernels;
    const Access writing = beta == 0 ? Access::write : Access::update;
    Correlation::Stack out = shape_.out;
    out.channels = part.channels;
    Images y = out_images_;
    y.data += part.first * (channels_last() ? 1 : y.plane);
    if (pass_ == Pass::backward_filter) {
      for_each_block(y, out, part.out, Tiles::disjoint, Access::read, kernels.analyse_gradient);
      multiply(method_, division(), Transpose::yes, shape_.backward_filter(), in_, part.out, part.filter,
               {shape_.filter_planes.rows, part.channels});
      for_each_block(part, writing,
                     [&](const FilterBlock& block) { kernels.synthesise_filter(block, alpha, beta); });
    } else {
      if (!is_kept_) analyse_filter(part);
      multiply(method_, division(), Transpose::no, shape_.forward(), in_, part.filter, part.out,
               {shape_.out_planes.rows, part.channels});
      for_each_block(
          y, out, part.out, Tiles::disjoint, writing,
          [&](const ImageBlock& block) { kernels.synthesise_image(block, alpha, beta); },
          bias_.empty() ? nullptr : bias_.data() + part.first);
    }
  }

  // The dimension that is divided among the threads, in the transforms and in the products. It belongs to the
  // larger spectra (the images' or the filter's), so that a thread reads only its own share of them, which it
  // wrote itself and which is in its core's caches. Every thread reads all of the smaller spectra.
  enum class Along { images, in_channels, out_channels };

  Along choose_along() const {
    const std::int64_t in = size(shape_.in_planes), out = size(shape_.out_planes);
    if (pass_ == Pass::backward_filter) return in < out ? Along::out_channels : Along::in_channels;
    return in + out < size(shape_.filter_planes) ? Along::out_channels : Along::images;
  }

  Division division() const {
    // Spectra with more floats leave the caches before the products read them.
    constexpr std::int64_t cached = std::int64_t{1} << 22;
    if (along_ == Along::images) return Division::rows;
    if (along_ == Along::out_channels) return Division::planes;
    const bool stay = planes_of(method_) * (in_.plane_stride + out_.plane_stride) <= cached;
    return stay ? Division::rows : Division::planes;
  }

  // Calls body(block) for blocks of channels of all images, in bands of tile rows so short that their pixels
  // stay in the cache. `bias` is that of the image's channels, or null.
  template <typename Body>
  void for_each_block(const Images& memory, const Correlation::Stack& image, const Spectrum& spectrum,
                      Tiles tiles, Access access, Body&& body, const float* bias = nullptr) const {
    const bool overlapping = tiles == Tiles::overlapping;
    ImageBlock whole{};
    whole.step_height = shape_.step_height;
    whole.step_width = shape_.step_width;
    whole.tile_height = overlapping ? method_.tile_height : shape_.step_height;
    whole.tile_width = overlapping ? method_.tile_width : shape_.step_width;
    whole.tile_columns = shape_.tile_columns;

    constexpr std::int64_t band_pixels = 1024;
    const std::int64_t widest = ceil_div(image.width, shape_.columns.dilation);
    const std::int64_t overlap = whole.tile_height - whole.step_height;
    const std::int64_t images = shape_.stacks * image.depth;
    const std::int64_t most_rows =
        along_ == Along::images ? ceil_div(images * shape_.tile_rows, threads()) : shape_.tile_rows;
    const std::int64_t band_rows = std::clamp<std::int64_t>(
        (band_pixels / widest - overlap) / whole.step_height, 1, std::min(most_rows, shape_.tile_rows));
    const std::int64_t bands = ceil_div(shape_.tile_rows, band_rows);
    const std::int64_t blocks = ceil_div(image.channels, block_channels);
    const std::int64_t packed_pixels = (band_rows * whole.step_height + overlap + 1) * widest;
    const std::int64_t tile_row_columns = shape_.tile_columns * whole.step_width + method_.tile_width;
    const std::int64_t packed_floats =
        block_channels * (packed_pixels + method_.tile_height * tile_row_columns);
    const std::int64_t copied_floats = in_place() ? 0 : block_channels * packed_pixels;
    const std::int64_t pixel_stride = channels_last() ? memory.channels : 1;
    const std::int64_t channel_stride = channels_last() ? 1 : memory.plane;

    const bool by_channels = along_ == Along::in_channels && overlapping;
    parallel_for(images * blocks * bands, [&](std::int64_t begin, std::int64_t end) {
      ImageBlock block = whole;
      block.scratch = scratch(packed_floats + copied_floats);
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t channel = (by_channels ? i / (images * bands) : i % blocks) * block_channels;
        const std::int64_t banded = by_channels ? i % (images * bands) : i / blocks;
        const std::int64_t stacked = banded / bands, band = banded % bands;
        const std::int64_t stack = stacked / image.depth, z = stacked % image.depth;
        const std::int64_t n = stack / (shape_.rows.residues * shape_.columns.residues);
        const std::int64_t row = stack / shape_.columns.residues % shape_.rows.residues;
        const std::int64_t column = stack % shape_.columns.residues;
        const Correlation::Residue rows =
            overlapping ? shape_.rows.of_in(image.height, row) : shape_.rows.of_out(image.height, row);
        const Correlation::Residue columns = overlapping ? shape_.columns.of_in(image.width, column)
                                                         : shape_.columns.of_out(image.width, column);
        block.height = rows.size;
        block.width = columns.size;
        block.pad_height = rows.pad;
        block.pad_width = columns.pad;
        block.first_row = shape_.tile_rows * band / bands;
        block.last_row = shape_.tile_rows * (band + 1) / bands;
        block.channels = std::min(block_channels, image.channels - channel);
        const std::int64_t tile = stacked * shape_.image_tiles + block.first_row * shape_.tile_columns;
        block.bias = bias == nullptr ? nullptr : bias + channel;
        block.spectrum = spectrum;
        block.spectrum.data += tile * spectrum.row_stride + channel;
        S* const first_pixel =
            memory.data + n * memory.channels * memory.plane + channel * channel_stride +
            (z * image.height * image.width + rows.first * image.width + columns.first) * pixel_stride;
        if (in_place()) {
          if constexpr (std::is_same_v<S, float>) block.image = first_pixel;
          block.channel_stride = channel_stride;
          block.pixel_stride = pixel_stride;
          body(block);
        } else {
          const std::int64_t row_stride = shape_.rows.dilation * image.width * pixel_stride;
          block.image = block.scratch + packed_floats;
          const Block copied =
              copied_rows(block, channel_stride, row_stride, shape_.columns.dilation * pixel_stride);
          through_copy(first_pixel + block.image_row * row_stride, copied, block.image, access,
                       [&] { body(block); });
        }
      }
    });
  }

  // Chooses the rows that the block's copy has, and the strides of the copy.
  Block copied_rows(ImageBlock& block, std::int64_t channel_stride, std::int64_t row_stride,
                    std::int64_t column_stride) const {
    const std::int64_t last = (block.last_row - 1) * block.step_height - block.pad_height + block.tile_height;
    block.image_row =
        std::clamp<std::int64_t>(block.first_row * block.step_height - block.pad_height, 0, block.height);
    const Dimension rows{std::clamp(last, block.image_row, block.height) - block.image_row, row_stride};
    const Dimension columns{block.width, column_stride}, channels{block.channels, channel_stride};
    if (channels_last()) {
      block.channel_stride = 1;
      block.pixel_stride = block.channels;
      return {channels, columns, rows};
    }
    block.channel_stride = rows.count * block.width;
    block.pixel_stride = 1;
    return {columns, rows, channels};
  }

  // Runs the body on a copy of a block of the tensor.
  template <typename Body>
  static void through_copy(S* tensor, const Block& block, float* copy, Access access, const Body& body) {
    if (access != Access::write) load_block(tensor, block, copy);
    body();
    if (access != Access::read) store_block(copy, block, tensor);
  }

  // Divides the part's filter into blocks, and calls body(block) for each. A block has one tap of the
  // filter's depth, up to 16 output channels and up to 16 input channels.
  template <typename Body>
  void for_each_block(const Part& part, Access access, Body&& body) const {
    const std::int64_t depth = problem_.kernel[0], taps = problem_.kernel[1] * problem_.kernel[2];
    FilterBlock whole{};
    whole.out_stride = problem_.in_channels * depth * taps;
    whole.in_stride = channels_last() ? 1 : depth * taps;
    whole.tap_stride = channels_last() ? problem_.in_channels : 1;
    whole.rotated = pass_ == Pass::backward_data;
    if (whole.rotated) std::swap(whole.out_stride, whole.in_stride);
    whole.height = problem_.kernel[1];
    whole.width = problem_.kernel[2];

    constexpr std::int64_t run_channels = 16;
    const std::int64_t runs = ceil_div(shape_.in.channels, run_channels);
    const std::int64_t blocks = ceil_div(part.channels, block_channels);
    const std::int64_t block_floats = block_channels * run_channels * taps;
    parallel_for(depth * runs * blocks, [&](std::int64_t begin, std::int64_t end) {
      FilterBlock block = whole;
      block.scratch = scratch(2 * block_floats);
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t range = i / blocks, out = i % blocks * block_channels;
        const std::int64_t in = range % runs * run_channels;
        const std::int64_t tap = range / runs, slice = whole.rotated ? depth - 1 - tap : tap;
        block.in_channels = std::min(run_channels, shape_.in.channels - in);
        block.out_channels = std::min(block_channels, part.channels - out);
        S* const filter = w_ + in * whole.in_stride + (part.first + out) * whole.out_stride +
                          slice * taps * whole.tap_stride;
        block.spectrum = part.filter;
        block.spectrum.data += (tap * shape_.in.channels + in) * part.filter.row_stride + out;
        if constexpr (std::is_same_v<S, float>) {
          block.filter = filter;
          body(block);
        } else {
          block.filter = block.scratch + block_floats;
          through_copy(filter, copied_taps(block, whole), block.filter, access, [&] { body(block); });
        }
      }
    });
  }

  // Sets the strides of the block's copy, which has the tensor's order.
  Block copied_taps(FilterBlock& block, const FilterBlock& whole) const {
    const Dimension in{block.in_channels, whole.in_stride}, out{block.out_channels, whole.out_stride};
    const Dimension taps{block.height * block.width, whole.tap_stride};
    std::int64_t& inner_stride = block.rotated ? block.out_stride : block.in_stride;
    std::int64_t& outer_stride = block.rotated ? block.in_stride : block.out_stride;
    const Dimension &inner = block.rotated ? out : in, &outer = block.rotated ? in : out;
    outer_stride = inner.count * taps.count;
    inner_stride = channels_last() ? 1 : taps.count;
    block.tap_stride = channels_last() ? inner.count : 1;
    if (channels_last()) return {inner, taps, outer};
    return {taps, inner, outer};
  }

  bool channels_last() const { return problem_.layout == Layout::nhwc; }
  bool in_place() const { return std::is_same_v<S, float> && shape_.undilated(); }

  const Method& method_;
  const Problem& problem_;
  const Pass pass_;
  const Correlation shape_;
  Spectrum in_, out_, filter_;
  S* w_;
  Images in_images_, out_images_;
  Along along_;
  std::vector<float> bias_;  // that of all output channels; empty without a bias
  bool is_kept_ = false;     // true if filter_ has the spectra of all parts, and they are there
};

}  // namespace

std::optional<std::size_t> workspace_size(const Method& method, const Kernel& kernel) {
  const Problem& p = kernel.problem;
  if (p.data_type == DataType::f64 || p.groups != 1) return std::nullopt;
  if (p.kernel[0] > 1 && p.dilation[0] > 1) return std::nullopt;
  for (int axis = 0; axis < 3; ++axis) {
    if (p.stride[axis] != 1) return std::nullopt;
    const std::int64_t reach = (p.kernel[axis] - 1) * p.dilation[axis];
    if (kernel.pass == Pass::backward_data && p.padding[axis] > reach) return std::nullopt;
  }
  const std::int64_t planes = planes_of(method);
  const Correlation whole(kernel, method.tile_height, method.tile_width);
  double floats = 0;
  for (const Planes& spectra : {whole.in_planes, whole.out_planes, whole.filter_planes}) {
    floats += static_cast<double>(spectra.rows) * static_cast<double>(spectra.row_stride);
  }
  if (floats * static_cast<double>(planes * sizeof(float)) > 0x1p62) return std::nullopt;
  const Correlation shape = shape_of(method, kernel);
  const std::int64_t plane =
      shape.in_planes.plane_stride() + shape.out_planes.plane_stride() + shape.filter_planes.plane_stride();
  return static_cast<std::size_t>(plane * planes) * sizeof(float);
}

void convolve(const Method& method, const Kernel& kernel, const Tensors& tensors, double alpha, double beta,
              void* workspace) {
  with_type(kernel.problem.data_type, [&](auto type) {
    if constexpr (!std::is_same_v<decltype(type), double>) {  // workspace_size() refuses it
      Convolution<decltype(type)>(method, kernel, tensors, static_cast<float*>(workspace))
          .run(static_cast<float>(alpha), static_cast<float>(beta));
    }
  });
}

std::size_t kept_filter_size(const Method& method, const Kernel& kernel) {
  const Correlation shape = shape_of(method, kernel);
  const std::int64_t parts = ceil_div(shape.out.channels, shape.part_channels);
  return static_cast<std::size_t>(header_floats + parts * part_floats(method, shape)) * sizeof(float);
}

void keep_filter(const Method& method, const Kernel& kernel, const void* w, void* kept) {
  with_type(kernel.problem.data_type, [&](auto type) {
    if constexpr (!std::is_same_v<decltype(type), double>) {
      // The spectra of the images are neither read nor written.
      Convolution<decltype(type)>(method, kernel, {nullptr, const_cast<void*>(w), nullptr},
                                  static_cast<float*>(kept))
          .keep_filter(kept);
    }
  });
}

}  // namespace mucudnn::host::spectral
