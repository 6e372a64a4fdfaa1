// Products of bfloat16 matrices on AMX, whose registers hold 16 × 32 bfloat16 or 16 × 16 fp32. It must not
// include standard headers with code: see kernels.cpp.
#define MUCUDNN_ISA amx
#define MUCUDNN_LANES 16
#include <immintrin.h>

#include "host/transforms/products.hpp"
#include "host/transforms/vector.hpp"

namespace mucudnn::host::transforms::amx {
namespace {

// A register holds kLines lines of a factor, with kTerms terms each. Four registers hold kSums × kSums sums.
constexpr std::int64_t kLines = 16, kTerms = 32, kTile = kLines * kTerms, kSums = 2 * kLines;
constexpr long long kTileBytes = 64, kSumBytes = kSums * 4;  // from line to line

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Returns a mask of the first `count` of 32 values, for any count.
MUCUDNN_INLINE std::uint32_t first(std::int64_t count) {
  return count >= 32 ? ~0u : count <= 0 ? 0u : (1u << count) - 1;
}

typedef std::uint32_t Words __attribute__((vector_size(64), may_alias));
MUCUDNN_INLINE Words words(__m256i values) {
  return __builtin_convertvector(reinterpret_cast<Halves>(values), Words);
}

// Loads 16 × 32 values as pairs of terms: v[line][pair], or v[pair][line] if the factor is stored by terms.
// Values outside the factor become 0.
template <bool by_terms>
MUCUDNN_INLINE void load_pairs(const std::uint16_t* from, std::int64_t stride, std::int64_t lines,
                               std::int64_t terms, Vector (&v)[lanes]) {
  if (by_terms) {
    const auto some = static_cast<__mmask16>(first(lines));
#pragma GCC unroll 16
    for (int pair = 0; pair < lanes; ++pair) {
      const std::uint16_t* low = from + 2 * pair * stride;
      const __m256i even = _mm256_maskz_loadu_epi16(2 * pair < terms ? some : 0, low);
      const __m256i odd = _mm256_maskz_loadu_epi16(2 * pair + 1 < terms ? some : 0, low + stride);
      v[pair] = reinterpret_cast<Vector>(words(even) | words(odd) << 16);
    }
  } else {
    const std::uint32_t some = first(terms);
#pragma GCC unroll 16
    for (int line = 0; line < lanes; ++line) {
      v[line] =
          reinterpret_cast<Vector>(_mm512_maskz_loadu_epi16(line < lines ? some : 0, from + line * stride));
    }
  }
}

// Packs 16 lines: for each 32 terms one register's values, with pairs of terms along its lines or its
// columns.
template <bool by_terms, bool pairs_first>
void pack_lines(const Factor& factor, std::int64_t lines, std::int64_t terms, std::uint16_t* to) {
  for (std::int64_t term = 0; term < terms; term += kTerms, to += kTile) {
    Vector v[lanes];
    load_pairs<by_terms>(factor.data + term * (by_terms ? factor.stride : 1), factor.stride, lines,
                         terms - term, v);
    if (by_terms != pairs_first) transpose(v);
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) store(reinterpret_cast<float*>(to) + i * lanes, v[i]);
  }
}

// Packs 17 to 32 lines of a factor that is stored by terms, like two calls to pack_lines<true, true>.
void pack_two(const Factor& factor, std::int64_t lines, std::int64_t terms, std::uint16_t* to) {
  const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  const std::uint32_t some = first(lines);
  std::uint16_t* next = to + ceil_div(terms, kTerms) * kTile;
  for (std::int64_t term = 0; term < ceil_div(terms, kTerms) * kTerms; term += 2) {
    const std::uint16_t* from = factor.data + term * factor.stride;
    const __m512i even = _mm512_maskz_loadu_epi16(term < terms ? some : 0, from);
    const __m512i odd = _mm512_maskz_loadu_epi16(term + 1 < terms ? some : 0, from + factor.stride);
    // Each 128 bits hold four pairs of the lower lines, or of the upper ones.
    const __m512i lower = _mm512_unpacklo_epi16(even, odd), upper = _mm512_unpackhi_epi16(even, odd);
    _mm512_store_si512(to + term * kLines, _mm512_permutex2var_epi64(lower, low, upper));
    _mm512_store_si512(next + term * kLines, _mm512_permutex2var_epi64(lower, high, upper));
  }
}

Factor part_of(const Factor& f, std::int64_t line, std::int64_t term) {
  return {f.data + (f.by_terms ? term * f.stride + line : line * f.stride + term), f.stride, f.by_terms};
}

// Packs lines, 16 at a time.
template <bool pairs_first>
void pack(const Factor& factor, std::int64_t lines, std::int64_t terms, std::uint16_t* to) {
  for (std::int64_t line = 0; line < lines; line += kLines) {
    const Factor part = part_of(factor, line, 0);
    const auto pack_some = part.by_terms ? pack_lines<true, pairs_first> : pack_lines<false, pairs_first>;
    pack_some(part, smaller(kLines, lines - line), terms, to);
    to += ceil_div(terms, kTerms) * kTile;
  }
}

// The registers' values of one or two times 16 lines: `next` leads from one register's to those of the next
// 32 terms, and `lines` from a line to the next, in values. `second` leads to the second 16 lines.
struct Registers {
  const std::uint16_t* data;
  std::int64_t next, lines, second;
};

Registers packed(const std::uint16_t* data, std::int64_t steps) {
  return {data, kTile, kTerms, steps * kTile};
}

// Multiplies 16 lines of a by 16 lines of b, or 32 where `two_a` or `two_b` is true, and writes the sums over
// all terms.
template <bool two_a, bool two_b>
void sum(const Registers& a, const Registers& b, std::int64_t steps, float* sums) {
  const std::uint16_t *from_a = a.data, *from_b = b.data;
  const std::int64_t pitch = a.lines * 2;
  _tile_zero(0);
  if (two_b) _tile_zero(1);
  if (two_a) _tile_zero(2);
  if (two_a && two_b) _tile_zero(3);
  for (std::int64_t i = 0; i < steps; ++i, from_a += a.next, from_b += b.next) {
    _tile_loadd(4, from_a, pitch);
    _tile_loadd(6, from_b, kTileBytes);
    _tile_dpbf16ps(0, 4, 6);
    if (two_b) {
      _tile_loadd(7, from_b + b.second, kTileBytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (two_a) {
      _tile_loadd(5, from_a + a.second, pitch);
      _tile_dpbf16ps(2, 5, 6);
    }
    if (two_a && two_b) _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, kSumBytes);
  if (two_b) _tile_stored(1, sums + kLines, kSumBytes);
  if (two_a) _tile_stored(2, sums + kLines * kSums, kSumBytes);
  if (two_a && two_b) _tile_stored(3, sums + kLines * kSums + kLines, kSumBytes);
}

void sum_lines(const Registers& a, const Registers& b, std::int64_t lines, std::int64_t columns,
               std::int64_t steps, float* sums) {
  if (lines > kLines) {
    columns > kLines ? sum<true, true>(a, b, steps, sums) : sum<true, false>(a, b, steps, sums);
  } else {
    columns > kLines ? sum<false, true>(a, b, steps, sums) : sum<false, false>(a, b, steps, sums);
  }
}

// Writes c = alpha * sums + beta * c.
void write(const float* sums, std::int64_t lines, std::int64_t columns, float alpha, float beta, float* c,
           std::int64_t stride) {
  const __m512 factor = _mm512_set1_ps(alpha), keep = _mm512_set1_ps(beta);
  for (std::int64_t line = 0; line < lines; ++line) {
    for (std::int64_t column = 0; column < columns; column += lanes) {
      const auto some = static_cast<__mmask16>(first(smaller<std::int64_t>(columns - column, lanes)));
      float* to = c + line * stride + column;
      __m512 value = _mm512_mul_ps(factor, _mm512_load_ps(sums + line * kSums + column));
      if (beta != 0) value = _mm512_fmadd_ps(keep, _mm512_maskz_loadu_ps(some, to), value);
      _mm512_mask_storeu_ps(to, some, value);
    }
  }
}

struct alignas(64) TileConfiguration {
  std::uint8_t palette, start_row, reserved[14];
  std::uint16_t line_bytes[16];
  std::uint8_t lines[16];
};

constexpr TileConfiguration kEightFullTiles = {
    1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

}  // namespace

void multiply(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const Factor& a, const Factor& b,
              float beta, float* c, std::int64_t stride, void* memory) {
  auto* const packed_a = static_cast<std::uint16_t*>(memory);
  auto* const packed_b = packed_a + kProductLines * kProductTerms;
  alignas(64) float sums[kSums * kSums];
  _tile_loadconfig(&kEightFullTiles);
  for (std::int64_t term = 0; term < k; term += kProductTerms, beta = 1) {
    const std::int64_t terms = smaller(kProductTerms, k - term), steps = ceil_div(terms, kTerms);
    for (std::int64_t row = 0; row < m; row += kProductLines) {
      const std::int64_t rows = smaller(kProductLines, m - row);
      const Factor part_a = part_of(a, row, term);
      // Whole registers of contiguous terms need no packing.
      const std::int64_t direct = part_a.by_terms || terms % kTerms != 0 ? 0 : rows / kSums * kSums;
      pack<false>(part_of(part_a, direct, 0), rows - direct, terms, packed_a);
      for (std::int64_t column = 0; column < n; column += kSums) {
        const std::int64_t columns = smaller(kSums, n - column);
        const Factor part_b = part_of(b, column, term);
        if (b.by_terms && columns > kLines) {
          pack_two(part_b, columns, terms, packed_b);
        } else {
          pack<true>(part_b, columns, terms, packed_b);
        }
        for (std::int64_t line = 0; line < rows; line += kSums) {
          const std::int64_t lines = smaller(kSums, rows - line);
          const Registers in_place{part_a.data + line * part_a.stride, kTerms, part_a.stride,
                                   kLines * part_a.stride};
          const Registers registers =
              line < direct ? in_place : packed(packed_a + (line - direct) * steps * kTerms, steps);
          sum_lines(registers, packed(packed_b, steps), lines, columns, steps, sums);
          write(sums, lines, columns, alpha, beta, c + (row + line) * stride + column, stride);
        }
      }
    }
  }
  _tile_release();
}

}  // namespace mucudnn::host::transforms::amx
