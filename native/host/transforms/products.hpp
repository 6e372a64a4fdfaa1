// Products of bfloat16 matrices that the processor computes itself, without a conversion to fp32 first. The
// sums are fp32, and subnormal values count as 0, as in stock PyTorch on such a processor. The kernel
// includes this file, so it must not contain inline code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mucudnn::host::transforms {

// A factor of a product: lines of terms, which the product sums over. Either the terms of a line are
// contiguous, or (`by_terms`) the lines of a term are. `stride` leads to the next line, or term.
struct Factor {
  const std::uint16_t* data;
  std::int64_t stride;
  bool by_terms;
};

// The lines of its first factor that the product packs at a time, and their terms.
constexpr std::int64_t kProductLines = 512, kProductTerms = 640;
constexpr std::size_t kProductMemory = (kProductLines + 32) * kProductTerms * sizeof(std::uint16_t);

// Computes c (m × n) = alpha · a · bᵀ + beta · c for a with m lines and b with n lines of k terms. With beta
// 0 it does not read c. `memory` holds kProductMemory bytes, aligned to 64.
using BFloat16Product = void (*)(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const Factor& a,
                                 const Factor& b, float beta, float* c, std::int64_t stride, void* memory);

// Returns the product; null if the processor or the system has none.
BFloat16Product bfloat16_product();

}  // namespace mucudnn::host::transforms
