// Translates descriptors to the engine's problem, and the enumerators of a pass to its algorithms.
#pragma once

#include <cstdint>
#include <optional>

#include "core/problem.hpp"
#include "host/abi/state.hpp"
#include "host/algorithms/convolution.hpp"

namespace mucudnn::host {

// Calls DEFINE for each pass with its name in functions, in types and in Pass, and with its two inputs and
// its output in the order in which the functions take them.
#define MUCUDNN_PASSES(DEFINE)                          \
  DEFINE(Forward, Fwd, forward, x, w, y)                \
  DEFINE(BackwardData, BwdData, backward_data, w, y, x) \
  DEFINE(BackwardFilter, BwdFilter, backward_filter, x, y, w)

// The four descriptors of a call. In a backward pass x, w or y is the gradient.
struct Descriptors {
  Pass pass;
  cudnnTensorDescriptor_t x;
  cudnnFilterDescriptor_t w;
  cudnnConvolutionDescriptor_t convolution;
  cudnnTensorDescriptor_t y;
};

// Throws Failure, NOT_SUPPORTED, unless the type is float, double, half or bfloat16.
DataType data_type_of(cudnnDataType_t type);

// Returns a filter as a packed tensor.
cudnnTensorStruct tensor_of(const cudnnFilterStruct& filter);

// Returns the tensor with packed strides. Throws Failure, NOT_SUPPORTED, from 2^63 elements on.
cudnnTensorStruct packed(cudnnTensorStruct tensor, Layout layout);

// Returns whether two tensors have the same type, sizes and strides.
bool same_layout(const cudnnTensorStruct& a, const cudnnTensorStruct& b);

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
Kernel kernel_of(const Descriptors& descriptors);

// Returns the channels and rows that x and y have in memory, for the descriptors that problem_of() made the
// problem from.
Pitch pitch_of(const Problem& problem, const cudnnTensorStruct& x, const cudnnTensorStruct& y);

// Returns the tensors of a call whose descriptors kernel_of() has read. Throws Failure, BAD_PARAM, if the
// data of one of them is NULL.
Tensors tensors_of(const Descriptors& descriptors, const Problem& problem, const void* x, const void* w,
                   const void* y);

// Returns the engine's algorithm behind the enumerator of a pass; nothing if the engine does not have it, or
// if the number is not an enumerator.
std::optional<Algorithm> engine_algorithm(Pass pass, std::int64_t number);
int algorithm_count(Pass pass);

// Does the same, but throws Failure, BAD_PARAM, if the number is not an enumerator.
std::optional<Algorithm> legacy_algorithm(Pass pass, unsigned number);

}  // namespace mucudnn::host
