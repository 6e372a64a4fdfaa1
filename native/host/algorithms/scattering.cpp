#include <algorithm>

#include "host/algorithms/algorithms.hpp"
#include "host/lowering/lowering.hpp"
#include "host/threads/parallel.hpp"
#include "host/threads/thread_memory.hpp"

namespace mucudnn::host::scattering {
namespace {

// A product of one tile: the rows (channel, tap) of dx at some lines of y. It stays in the caches.
constexpr std::size_t kProductBytes = 768 * 1024;
constexpr std::int64_t kFewestColumns = 64;  // OpenBLAS copies the filter in every product
constexpr std::int64_t kGap = 16;            // successive rows of a product lie in different cache sets

// The fewest lines in a band of dx. Threads compute bands separately, so two neighbours both multiply the few
// lines of y that they share.
constexpr std::int64_t kFewestLines = 32;
constexpr std::int64_t kTasksOfAThread = 4;

struct Call {
  Lowering l;  // the lowering of forward: its source is dx, its result y
  const float* y;
  const float* filter;
  float alpha, beta;
  float* x;
};

// A band of one image and group: these lines of dx, at all depths.
struct Band {
  std::int64_t image, group;
  Range lines;
};

// The lines of y of one tile, at one depth.
struct Tile {
  std::int64_t depth;
  Range lines;
};

// The rows of a product are dx's channels and taps in NCHW, y's positions in NHWC.
struct Product {
  float* data;
  std::int64_t stride;
};

void add(const float* from, std::int64_t count, float* to, std::int64_t step) {
  if (step == 1) {
    for (std::int64_t i = 0; i < count; ++i) to[i] += from[i];
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i * step] += from[i];
  }
}

// Multiplies a band of dx by beta. With beta 0 it does not read dx.
void scale(const Call& call, const Band& band) {
  const auto& [d, h, w] = call.l.axes;
  const std::int64_t channels = call.l.source_channels, all_channels = call.l.source_pitch;
  const bool nchw = call.l.layout == Layout::nchw;
  const std::int64_t first = band.group * channels, row = w.source * (nchw ? 1 : all_channels);
  const std::int64_t planes = nchw ? channels * d.source : d.source;
  const auto scale_run = [&](float* run, std::int64_t count) {
    if (call.beta == 0) return static_cast<void>(std::fill_n(run, count, 0.f));
    for (std::int64_t i = 0; i < count; ++i) run[i] *= call.beta;
  };
  for (std::int64_t plane = 0; plane < planes; ++plane) {
    const std::int64_t index =
        nchw ? (band.image * all_channels + first) * d.source + plane : band.image * d.source + plane;
    float* const lines = call.x + (index * h.source + band.lines.begin) * row;
    if (nchw || channels == all_channels) {
      scale_run(lines, band.lines.size() * row);
    } else {
      for (std::int64_t i = 0; i < band.lines.size() * w.source; ++i) {
        scale_run(lines + i * all_channels + first, channels);
      }
    }
  }
}

void multiply(const Call& call, const Band& band, const Tile& tile, const Product& product) {
  const Lowering& l = call.l;
  const std::int64_t line = l.axes[2].positions, rows = l.rows();
  const std::int64_t first = (tile.depth * l.axes[1].positions + tile.lines.begin) * line;
  const std::int64_t columns = tile.lines.size() * line, terms = l.result_channels;
  const std::int64_t all_terms = l.result_pitch, plane = l.positions();
  const float* const filter = call.filter + band.group * terms * rows;
  const NoFork no_fork;
  if (l.layout == Layout::nchw) {
    gemm(Transpose::yes, Transpose::no, rows, columns, terms, call.alpha, filter, rows,
         call.y + (band.image * all_terms + band.group * terms) * plane + first, plane, 0.f, product.data,
         product.stride, no_fork);
  } else {
    gemm(Transpose::no, Transpose::no, columns, rows, terms, call.alpha,
         call.y + (band.image * plane + first) * all_terms + band.group * terms, all_terms, filter, rows, 0.f,
         product.data, product.stride, no_fork);
  }
}

// Adds a product in NCHW: each of its rows to the plane of its channel, moved by its tap.
void add_rows(const Call& call, const Band& band, const Tile& tile, const Product& product) {
  const Lowering& l = call.l;
  const auto& [d, h, w] = l.axes;
  for (std::int64_t row = 0; row < l.rows(); ++row) {
    const std::int64_t channel = row / l.taps(), tap = row % l.taps();
    const std::int64_t depth = d.source_at(tile.depth, tap / w.taps / h.taps);
    if (depth < 0 || depth >= d.source) continue;
    const std::int64_t index = band.image * l.source_pitch + band.group * l.source_channels + channel;
    float* const plane = call.x + (index * d.source + depth) * h.source * w.source;
    const Range inside = w.inside(tap % w.taps);
    const float* from = product.data + row * product.stride + inside.begin;
    for (std::int64_t at = tile.lines.begin; at < tile.lines.end; ++at, from += w.positions) {
      const std::int64_t line = h.source_at(at, tap / w.taps % h.taps);
      if (line < band.lines.begin || line >= band.lines.end || inside.size() <= 0) continue;
      add(from, inside.size(), plane + line * w.source + w.source_at(inside.begin, tap % w.taps), w.step);
    }
  }
}

// Adds a product in NHWC: each of its rows to the pixels that the taps of one position read.
void add_positions(const Call& call, const Band& band, const Tile& tile, const Product& product) {
  const Lowering& l = call.l;
  const auto& [d, h, w] = l.axes;
  const std::int64_t channels = l.source_channels, all_channels = l.source_pitch;
  const float* from = product.data;
  for (std::int64_t at = tile.lines.begin; at < tile.lines.end; ++at) {
    for (std::int64_t position = 0; position < w.positions; ++position, from += product.stride) {
      const std::int64_t left = w.source_at(position, 0);
      const std::int64_t begin = std::min(w.taps, ceil_div(std::max<std::int64_t>(-left, 0), w.tap_step));
      const std::int64_t end = std::clamp<std::int64_t>(
          ceil_div(std::max<std::int64_t>(w.source - left, 0), w.tap_step), begin, w.taps);
      for (std::int64_t tap = 0; tap < d.taps * h.taps; ++tap) {
        const std::int64_t depth = d.source_at(tile.depth, tap / h.taps);
        const std::int64_t line = h.source_at(at, tap % h.taps);
        if (depth < 0 || depth >= d.source || line < band.lines.begin || line >= band.lines.end) continue;
        const std::int64_t first = ((band.image * d.source + depth) * h.source + line) * w.source + left;
        float* const pixels = call.x + first * all_channels + band.group * channels;
        const float* const values = from + tap * w.taps * channels;
        if (channels == all_channels && w.tap_step == 1) {
          add(values + begin * channels, (end - begin) * channels, pixels + begin * channels, 1);
          continue;
        }
        for (std::int64_t i = begin; i < end; ++i) {
          add(values + i * channels, channels, pixels + i * w.tap_step * all_channels, 1);
        }
      }
    }
  }
}

// Returns the lines of y that a band of dx depends on.
Range lines_of_y(const Axis& h, Range band) {
  const std::int64_t last = h.source_at(0, h.taps - 1);
  const std::int64_t begin = ceil_div(std::max<std::int64_t>(band.begin - last, 0), h.step);
  const std::int64_t end = ceil_div(std::max<std::int64_t>(band.end - h.first, 0), h.step);
  return {std::min(begin, h.positions), std::min(end, h.positions)};
}

// Returns how many lines of y a tile has.
std::int64_t lines_of_tile(const Lowering& l) {
  const auto values = static_cast<std::int64_t>(kProductBytes / sizeof(float));
  return std::max<std::int64_t>(1, std::max(values / l.rows(), kFewestColumns) / l.axes[2].positions);
}

void run_band(const Call& call, const Band& band) {
  const Lowering& l = call.l;
  const auto& [d, h, w] = l.axes;
  const bool nchw = l.layout == Layout::nchw;
  scale(call, band);
  for (std::int64_t depth = 0; depth < d.positions; ++depth) {
    for_each_part(lines_of_y(h, band.lines), lines_of_tile(l), [&, &w = w](Range part) {
      const Tile tile{depth, part};
      const Product product{static_cast<float*>(memory_of_this_thread()),
                            nchw ? part.size() * w.positions + kGap : l.rows()};
      multiply(call, band, tile, product);
      if (nchw) {
        add_rows(call, band, tile, product);
      } else {
        add_positions(call, band, tile, product);
      }
    });
  }
}

}  // namespace

bool takes(const Kernel& kernel) {
  const Problem& p = kernel.problem;
  if (kernel.pass != Pass::backward_data || p.data_type != DataType::f32) return false;
  if (has_small_products()) return false;  // they multiply a few rows fast enough
  const Lowering l = lower_forward(p);
  const std::int64_t columns = lines_of_tile(l) * p.output[2] + kGap;
  return l.taps() > 1 && 2 * l.source_channels <= l.result_channels && fits_blas(l.positions()) &&
         fits_blas(l.result_channels * l.groups) && fits_blas(l.rows()) &&
         columns <= static_cast<std::int64_t>(kThreadMemory / sizeof(float)) / l.rows();
}

void convolve(const Kernel& kernel, const Tensors& tensors, double alpha, double beta) {
  const Problem& p = kernel.problem;
  const Call call{lower_forward(p, tensors.pitch),
                  static_cast<const float*>(tensors.y),
                  static_cast<const float*>(tensors.w),
                  static_cast<float>(alpha),
                  static_cast<float>(beta),
                  static_cast<float*>(tensors.x)};
  const std::int64_t images = p.mini_batch * p.groups, lines = p.input[1];
  const std::int64_t tasks = threads() == 1 ? 1 : kTasksOfAThread * threads();
  const std::int64_t most_bands = std::max<std::int64_t>(1, lines / kFewestLines);
  const std::int64_t part = ceil_div(lines, std::min(ceil_div(tasks, images), most_bands));
  const std::int64_t bands = ceil_div(lines, part);
  parallel_for(images * bands, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t index = begin; index < end; ++index) {
      const std::int64_t image = index / bands, first = index % bands * part;
      run_band(call, {image / p.groups, image % p.groups, {first, std::min(lines, first + part)}});
    }
  });
}

}  // namespace mucudnn::host::scattering
