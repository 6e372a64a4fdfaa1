// Depthwise convolutions of lines. Each channel has a lane, so that both layouts share the arithmetic. Only
// kernels.cpp includes this file.
#pragma once

#include "host/transforms/vector.hpp"

#include <cstdint>

namespace mucudnn::host::transforms::MUCUDNN_ISA {
namespace {

MUCUDNN_INLINE const Vector* vectors(const float* aligned) {
  return reinterpret_cast<const Vector*>(aligned);
}

// Packs by way of a buffer, because transposed blocks of pixels are longer than many lines.
void pack_lines_transposed(Vector* packed, const Run& run, std::int64_t line, std::int64_t pitch) {
  constexpr std::int64_t block = 256;
  Vector buffer[block];
  Run part = run;
  std::int64_t column = 0;
  for (std::int64_t first = 0; first < run.pixels; first += block) {
    part.data = run.data + first * run.pixel_stride;
    part.pixels = smaller(block, run.pixels - first);
    pack(buffer, part);
    for (std::int64_t p = 0; p < part.pixels; ++p) {
      packed[column] = buffer[p];
      if (++column == line) {
        column = 0;
        packed += pitch;
      }
    }
  }
}

// How many pixels ahead the tensor in NHWC is fetched: hardware prefetchers do not follow its stride.
constexpr std::int64_t pixels_ahead = 8;

// Packs or unpacks one vector of channels after the other.
template <typename Body>
MUCUDNN_INLINE void for_each_vector(const Run& run, const Body& body) {
  Run part = run;
  for (std::int64_t first = 0; first < run.channels; first += lanes) {
    part.data = run.data + first * run.channel_stride;
    part.channels = channels_from(run.channels, static_cast<int>(first));
    if (run.bias != nullptr) part.bias = run.bias + first;
    body(part, first / lanes);
  }
}

void pack_lines(float* packed, const Run& run, std::int64_t plane, std::int64_t line, std::int64_t pitch) {
  if (run.channel_stride != 1) {
    for_each_vector(run, [&](const Run& part, std::int64_t v) {
      pack_lines_transposed(vectors(packed + v * plane), part, line, pitch);
    });
    return;
  }
  Run row = run;
  row.pixels = line;
  for (std::int64_t first = 0; first < run.pixels; first += line, packed += pitch * lanes) {
    row.data = run.data + first * run.pixel_stride;
    if (run.channels % lanes == 0) {
      for (std::int64_t p = 0; p < line; ++p) {
        const float* pixel = row.data + p * run.pixel_stride;
        float* to = packed + p * lanes;
        for (std::int64_t c = 0; c < run.channels; c += lanes, to += plane) {
          __builtin_prefetch(pixel + c + pixels_ahead * run.pixel_stride);
          store(to, load(pixel + c));
        }
      }
    } else {
      for_each_vector(row, [&](const Run& part, std::int64_t v) { pack(vectors(packed + v * plane), part); });
    }
  }
}

template <Beside beside>
void unpack_pixels_whole(const float* packed, const Run& run, std::int64_t plane, float alpha, float beta) {
  for (std::int64_t p = 0; p < run.pixels; ++p, packed += lanes) {
    float* pixel = run.data + p * run.pixel_stride;
    const float* from = packed;
    for (std::int64_t c = 0; c < run.channels; c += lanes, from += plane) {
      __builtin_prefetch(pixel + c + pixels_ahead * run.pixel_stride, 1);
      const Vector bias = beside == Beside::bias ? load(run.bias + c) : Vector{};
      unpack_vector<beside>(pixel + c, load(from), alpha, beta, bias);
    }
  }
}

void unpack_run(const float* packed, const Run& run, std::int64_t plane, float alpha, float beta) {
  if (run.channel_stride == 1 && run.channels % lanes == 0) {
    const auto unpack_whole = run.bias != nullptr ? unpack_pixels_whole<Beside::bias>
                              : beta != 0         ? unpack_pixels_whole<Beside::old>
                                                  : unpack_pixels_whole<Beside::nothing>;
    return unpack_whole(packed, run, plane, alpha, beta);
  }
  for_each_vector(
      run, [&](const Run& part, std::int64_t v) { unpack(vectors(packed + v * plane), part, alpha, beta); });
}

// Enough sums for the latency of additions, and few enough for the registers of every instruction set.
constexpr int most_positions = 8, most_taps = 9;

// Sums at `count` positions. `step` is that of the axis, or 0 if it is known only at run time.
template <int step, int count>
void correlate_positions(const LineFactors* factors, std::int64_t lines, const LineAxis& axis,
                         std::int64_t position, Vector* result) {
  const std::int64_t advance = step != 0 ? step : axis.step;
  Vector sums[count] = {};
  for (std::int64_t i = 0; i < lines; ++i) {
    const Vector* source = vectors(factors[i].source) + axis.first + position * advance;
    const Vector* filter = vectors(factors[i].filter) + axis.filter_first;
    for (std::int64_t tap = 0; tap < axis.taps; ++tap) {
      const Vector weight = filter[tap * axis.filter_step];
      const Vector* read = source + tap * axis.tap_step;
#pragma GCC unroll 8
      for (int p = 0; p < count; ++p) sums[p] += weight * read[p * advance];
    }
  }
  Vector* write = result + axis.result_first + position * axis.result_step;
#pragma GCC unroll 8
  for (int p = 0; p < count; ++p) write[p * axis.result_step] = sums[p];
}

template <int step, int count = most_positions>
MUCUDNN_INLINE void correlate_some(std::int64_t positions, const LineFactors* factors, std::int64_t lines,
                                   const LineAxis& axis, std::int64_t position, Vector* result) {
  if (positions == count) {
    correlate_positions<step, count>(factors, lines, axis, position, result);
  } else if constexpr (count > 1) {
    correlate_some<step, count - 1>(positions, factors, lines, axis, position, result);
  }
}

template <int step>
void correlate_all(const LineFactors* factors, std::int64_t lines, const LineAxis& axis, Vector* result) {
  const std::int64_t parts = (axis.positions + most_positions - 1) / most_positions;
  for (std::int64_t part = 0, begin = 0; part < parts; ++part) {
    const std::int64_t end = axis.positions * (part + 1) / parts;
    correlate_some<step>(end - begin, factors, lines, axis, begin, result);
    begin = end;
  }
}

void correlate_line(const LineFactors* factors, std::int64_t lines, const LineAxis& axis, float* result) {
  const auto correlate = axis.step == 1   ? correlate_all<1>
                         : axis.step == 2 ? correlate_all<2>
                                          : correlate_all<0>;
  correlate(factors, lines, axis, vectors(result));
}

template <int step, int count>
void add_gradient_of(const TapGradient* taps, const Vector* gradient, std::int64_t positions,
                     std::int64_t axis_step) {
  const std::int64_t advance = step != 0 ? step : axis_step;
  const Vector* source[count];
  Vector sums[count] = {};
#pragma GCC unroll 16
  for (int t = 0; t < count; ++t) source[t] = vectors(taps[t].source);
  for (std::int64_t p = 0; p < positions; ++p) {
    const Vector factor = gradient[p];
#pragma GCC unroll 16
    for (int t = 0; t < count; ++t) sums[t] += factor * source[t][p * advance];
  }
#pragma GCC unroll 16
  for (int t = 0; t < count; ++t) *vectors(taps[t].sum) += sums[t];
}

template <int step, int count = most_taps>
MUCUDNN_INLINE void add_some_gradients(std::int64_t wanted, const TapGradient* taps, const Vector* gradient,
                                       std::int64_t positions, std::int64_t axis_step) {
  if (wanted == count) {
    add_gradient_of<step, count>(taps, gradient, positions, axis_step);
  } else if constexpr (count > 1) {
    add_some_gradients<step, count - 1>(wanted, taps, gradient, positions, axis_step);
  }
}

void add_line_gradient(const TapGradient* taps, std::int64_t count, const float* gradient,
                       std::int64_t positions, std::int64_t step) {
  const std::int64_t parts = (count + most_taps - 1) / most_taps;
  for (std::int64_t part = 0, begin = 0; part < parts; ++part) {
    const std::int64_t end = count * (part + 1) / parts;
    if (step == 1) {
      add_some_gradients<1>(end - begin, taps + begin, vectors(gradient), positions, step);
    } else {
      add_some_gradients<0>(end - begin, taps + begin, vectors(gradient), positions, step);
    }
    begin = end;
  }
}

}  // namespace
}  // namespace mucudnn::host::transforms::MUCUDNN_ISA
