// The few OpenBLAS calls that the host engine makes, row-major, under one overloaded name.
#pragma once

#include <cstdint>

#include <cblas.h>

#include "host/forks.hpp"

namespace mucudnn::host {

enum class Transpose { no, yes };

inline CBLAS_TRANSPOSE blas_of(Transpose transpose) {
  return transpose == Transpose::yes ? CblasTrans : CblasNoTrans;
}

// Computes c (m × n) = alpha · op(a) (m × k) · op(b) (k × n) + beta · c. The leading dimensions are those of
// the stored matrices. With beta 0 it does not read c. A caller that makes many short products holds one
// NoFork around all of them.
inline void gemm(Transpose ta, Transpose tb, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
                 const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
                 std::int64_t ldc, const NoFork& = NoFork()) {
  scipy_cblas_sgemm(CblasRowMajor, blas_of(ta), blas_of(tb), static_cast<blasint>(m), static_cast<blasint>(n),
                    static_cast<blasint>(k), alpha, a, static_cast<blasint>(lda), b,
                    static_cast<blasint>(ldb), beta, c, static_cast<blasint>(ldc));
}

inline void gemm(Transpose ta, Transpose tb, std::int64_t m, std::int64_t n, std::int64_t k, double alpha,
                 const double* a, std::int64_t lda, const double* b, std::int64_t ldb, double beta, double* c,
                 std::int64_t ldc, const NoFork& = NoFork()) {
  scipy_cblas_dgemm(CblasRowMajor, blas_of(ta), blas_of(tb), static_cast<blasint>(m), static_cast<blasint>(n),
                    static_cast<blasint>(k), alpha, a, static_cast<blasint>(lda), b,
                    static_cast<blasint>(ldb), beta, c, static_cast<blasint>(ldc));
}

}  // namespace mucudnn::host
