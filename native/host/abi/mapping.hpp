// Translates descriptors to the engine's problem, and the enumerators of a pass to its algorithms.
#pragma once

#include <optional>

#include "core/problem.hpp"
#include "host/abi/state.hpp"
#include "host/algorithms/convolution.hpp"

namespace mucudnn::host {

// The four descriptors of a call. In a backward pass x, w or y is the gradient.
struct Descriptors {
  cudnnTensorDescriptor_t x;
  cudnnFilterDescriptor_t w;
  cudnnConvolutionDescriptor_t convolution;
  cudnnTensorDescriptor_t y;
};

// Returns the packed tensor that a filter is.
cudnnTensorStruct tensor_of(const cudnnFilterStruct& filter);

// Returns the sizes of y, as many as the descriptors have dimensions. Throws Failure, BAD_PARAM, if the
// descriptors do not agree or no output is left.
std::array<std::int64_t, CUDNN_DIM_MAX> output_sizes(const cudnnConvolutionStruct& convolution,
                                                     const cudnnTensorStruct& x, const cudnnTensorStruct& w);

// Throws Failure, BAD_PARAM, unless y has these sizes.
void check_output(const cudnnTensorStruct& y, int dims, const std::array<std::int64_t, CUDNN_DIM_MAX>& sizes);

// Throws Failure: BAD_PARAM if the descriptors do not agree, NOT_SUPPORTED if the host engine does not have
// such dimensions, types, modes, paddings or strides.
Problem problem_of(const cudnnConvolutionStruct& convolution, const cudnnTensorStruct& x,
                   const cudnnTensorStruct& w, const cudnnTensorStruct& y);
Problem problem_of(const Descriptors& descriptors);

// Returns the channels that x and y have in memory, for descriptors of which problem_of() made the problem.
ChannelPitch pitch_of(const Problem& problem, const cudnnTensorStruct& x, const cudnnTensorStruct& y);

// The enumerators of each pass for the engine's algorithms. The backward enumerations have no GEMM: their
// ALGO_1 is implicit GEMM, their ALGO_0 explicit GEMM.
template <Pass pass>
struct Legacy;

template <>
struct Legacy<Pass::forward> {
  using Algorithm = cudnnConvolutionFwdAlgo_t;
  using Performance = cudnnConvolutionFwdAlgoPerf_t;
  static constexpr Algorithm kImplicit = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM;
  static constexpr Algorithm kExplicit = CUDNN_CONVOLUTION_FWD_ALGO_GEMM;
  static constexpr Algorithm kWinograd = CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED;
  static constexpr Algorithm kFft = CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING;
  static constexpr int kCount = CUDNN_CONVOLUTION_FWD_ALGO_COUNT;
};

template <>
struct Legacy<Pass::backward_data> {
  using Algorithm = cudnnConvolutionBwdDataAlgo_t;
  using Performance = cudnnConvolutionBwdDataAlgoPerf_t;
  static constexpr Algorithm kImplicit = CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
  static constexpr Algorithm kExplicit = CUDNN_CONVOLUTION_BWD_DATA_ALGO_0;
  static constexpr Algorithm kWinograd = CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED;
  static constexpr Algorithm kFft = CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING;
  static constexpr int kCount = CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT;
};

template <>
struct Legacy<Pass::backward_filter> {
  using Algorithm = cudnnConvolutionBwdFilterAlgo_t;
  using Performance = cudnnConvolutionBwdFilterAlgoPerf_t;
  static constexpr Algorithm kImplicit = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;
  static constexpr Algorithm kExplicit = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0;
  static constexpr Algorithm kWinograd = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED;
  static constexpr Algorithm kFft = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING;
  static constexpr int kCount = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT;
};

// Returns nothing for an algorithm that the engine does not have. Throws Failure, BAD_PARAM, if the number is
// no enumerator.
template <Pass pass>
std::optional<Algorithm> engine_algorithm(typename Legacy<pass>::Algorithm algorithm) {
  const auto value = static_cast<unsigned>(algorithm);
  if (value >= Legacy<pass>::kCount) bad_parameter("there is no algorithm " + std::to_string(value));
  if (algorithm == Legacy<pass>::kImplicit) return Algorithm::implicit_gemm;
  if (algorithm == Legacy<pass>::kExplicit) return Algorithm::explicit_gemm;
  if (algorithm == Legacy<pass>::kWinograd) return Algorithm::winograd_nonfused;
  if (algorithm == Legacy<pass>::kFft) return Algorithm::fft_tiling;
  return std::nullopt;
}

// Does the same for a pass known at run time, but returns nothing if the number is no enumerator.
std::optional<Algorithm> engine_algorithm(Pass pass, std::int64_t number);
int algorithm_count(Pass pass);

}  // namespace mucudnn::host
