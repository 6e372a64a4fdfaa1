// The few matrix products that the host engine makes, row-major, under one overloaded name: by OpenBLAS, and
// by the processor's own instructions for bfloat16.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include <cblas.h>

#include "core/half.hpp"
#include "host/threads/forks.hpp"
#include "host/threads/thread_memory.hpp"
#include "host/transforms/products.hpp"
#include "host/transforms/transforms.hpp"

namespace mucudnn::host {

enum class Transpose { no, yes };

// Returns whether OpenBLAS multiplies small matrices without copying them first, as its AVX-512 code does.
inline bool has_small_products() {
  return std::string_view(transforms::kernels().instruction_set) == "avx512";
}

inline CBLAS_TRANSPOSE blas_of(Transpose transpose) {
  return transpose == Transpose::yes ? CblasTrans : CblasNoTrans;
}

// Computes c (m × n) = alpha · op(a) (m × k) · op(b) (k × n) + beta · c. The leading dimensions are those of
// the stored matrices. With beta 0 it does not read c. A caller that makes many short products holds one
// NoFork around all of them.
template <typename T, typename = std::enable_if_t<std::is_floating_point_v<T>>>
void gemm(Transpose ta, Transpose tb, std::int64_t m, std::int64_t n, std::int64_t k, T alpha, const T* a,
          std::int64_t lda, const T* b, std::int64_t ldb, T beta, T* c, std::int64_t ldc,
          const NoFork& = NoFork()) {
  check_memory_of_first_product();
  constexpr auto narrow = [](std::int64_t size) { return static_cast<blasint>(size); };
  const auto multiply = [&](auto* cblas) {
    cblas(CblasRowMajor, blas_of(ta), blas_of(tb), narrow(m), narrow(n), narrow(k), alpha, a, narrow(lda), b,
          narrow(ldb), beta, c, narrow(ldc));
  };
  if constexpr (std::is_same_v<T, float>) {
    multiply(scipy_cblas_sgemm);
  } else {
    multiply(scipy_cblas_dgemm);
  }
}

// The caller may call it only if transforms::bfloat16_product() is not null. It needs no NoFork.
inline void gemm(Transpose ta, Transpose tb, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
                 const BFloat16* a, std::int64_t lda, const BFloat16* b, std::int64_t ldb, float beta,
                 float* c, std::int64_t ldc, const NoFork&) {
  transforms::bfloat16_product()(m, n, k, alpha, {&a->bits, lda, ta == Transpose::yes},
                                 {&b->bits, ldb, tb == Transpose::no}, beta, c, ldc,
                                 product_memory_of_this_thread());
}

}  // namespace mucudnn::host
