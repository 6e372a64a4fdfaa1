// Checks products of bfloat16 matrices against plain loops. The values are small whole numbers, so that every
// sum is exact. The matrices end where an array ends.
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <vector>

#include "core/half.hpp"
#include "host/transforms/products.hpp"

using namespace mucudnn;
using namespace mucudnn::host::transforms;

namespace {

unsigned state = 1;
int small_number() { return static_cast<int>((state = state * 1664525u + 1013904223u) >> 28) - 8; }

// Returns a matrix whose last line, or term, has nothing after it.
std::vector<std::uint16_t> draw(std::int64_t rows, std::int64_t length, std::int64_t stride) {
  std::vector<std::uint16_t> values((rows - 1) * stride + length, to_bfloat16(1e30f).bits);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < length; ++i) {
      values[row * stride + i] = to_bfloat16(static_cast<float>(small_number())).bits;
    }
  }
  return values;
}

float at(const Factor& f, std::int64_t line, std::int64_t term) {
  return to_float(BFloat16{f.data[f.by_terms ? term * f.stride + line : line * f.stride + term]});
}

void check(std::int64_t m, std::int64_t n, std::int64_t k, bool a_by_terms, bool b_by_terms, float beta) {
  const auto a_values = a_by_terms ? draw(k, m, m + 3) : draw(m, k, k + 1);
  const auto b_values = b_by_terms ? draw(k, n, n) : draw(n, k, k + 5);
  const Factor a{a_values.data(), a_by_terms ? m + 3 : k + 1, a_by_terms};
  const Factor b{b_values.data(), b_by_terms ? n : k + 5, b_by_terms};
  const std::int64_t stride = n + 2;
  const float untouched = 77;
  std::vector<float> c((m - 1) * stride + n, untouched);
  for (std::int64_t i = 0; beta == 0 && i < m; ++i) {  // such a product must not read its result
    for (std::int64_t j = 0; j < n; ++j) c[i * stride + j] = float_of(0x7fc00000u);
  }
  const std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(64, kProductMemory), std::free);
  bfloat16_product()(m, n, k, 2, a, b, beta, c.data(), stride, memory.get());
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(c.size()); ++i) {
    const std::int64_t row = i / stride, column = i % stride;
    float expected = untouched;
    if (column < n) {
      float sum = 0;
      for (std::int64_t term = 0; term < k; ++term) sum += at(a, row, term) * at(b, column, term);
      expected = 2 * sum + (beta == 0 ? 0 : beta * untouched);
    }
    if (c[i] == expected) continue;
    std::printf("%lld x %lld x %lld, by terms %d %d, beta %g: value %lld is %g instead of %g\n",
                static_cast<long long>(m), static_cast<long long>(n), static_cast<long long>(k), a_by_terms,
                b_by_terms, static_cast<double>(beta), static_cast<long long>(i), static_cast<double>(c[i]),
                static_cast<double>(expected));
    std::exit(1);
  }
}

}  // namespace

int main() {
  if (bfloat16_product() == nullptr) return 77;
  for (const bool a_by_terms : {false, true}) {
    for (const bool b_by_terms : {false, true}) {
      for (const std::int64_t k : {1, 2, 31, 32, 33, 64, 67}) {
        for (const std::int64_t m : {1, 15, 16, 17, 33, 64, 82}) {
          for (const std::int64_t n : {1, 16, 31, 48, 70}) check(m, n, k, a_by_terms, b_by_terms, 0.5f);
        }
      }
      check(kProductLines + 5, 40, kProductTerms + 9, a_by_terms, b_by_terms, 0);
      check(3, 5, 2 * kProductTerms + 1, a_by_terms, b_by_terms, 1);
    }
  }
}
