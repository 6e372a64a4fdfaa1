// The objects behind the opaque pointers of the ABI, and the failures of its functions.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <new>
#include <stdexcept>
#include <string>

#include "abi/cudnn.h"
#include "core/entry_guard.hpp"
#include "core/text.hpp"

struct cudnnContext {
  cudaStream_t stream = nullptr;
};

// A descriptor that was not set reads as zeros, as cuDNN's does.
struct cudnnTensorStruct {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  int dims = 0;
  std::array<std::int64_t, CUDNN_DIM_MAX> sizes{};
  std::array<std::int64_t, CUDNN_DIM_MAX> strides{};
};

// The strides stay 0: tensor_of() returns those that the format gives.
struct cudnnFilterStruct : cudnnTensorStruct {
  cudnnTensorFormat_t format = CUDNN_TENSOR_NCHW;
};

struct cudnnConvolutionStruct {
  static constexpr int kMaxDims = CUDNN_DIM_MAX - 2;

  int dims = 0;
  std::array<int, kMaxDims> paddings{};
  std::array<int, kMaxDims> post_paddings{};  // the graph API sets them; the legacy API sets both alike
  std::array<int, kMaxDims> strides{};
  std::array<int, kMaxDims> dilations{};
  cudnnConvolutionMode_t mode = CUDNN_CONVOLUTION;
  cudnnDataType_t compute_type = CUDNN_DATA_FLOAT;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
  cudnnReorderType_t reorder = CUDNN_DEFAULT_REORDER;
  int groups = 1;
};

struct cudnnActivationStruct {
  cudnnActivationMode_t mode = CUDNN_ACTIVATION_SIGMOID;
  cudnnNanPropagation_t relu_nan = CUDNN_NOT_PROPAGATE_NAN;
  double coefficient = 0;
  double swish_beta = 1;
};

namespace mucudnn::host {

// Ends a function of the ABI with this status. cudnnGetLastErrorString returns the message.
class Failure : public std::runtime_error {
 public:
  Failure(cudnnStatus_t status, const std::string& message) : std::runtime_error(message), status_(status) {}
  cudnnStatus_t status() const { return status_; }

 private:
  cudnnStatus_t status_;
};

// End a function with a message that joins the parts.
template <typename... Parts>
[[noreturn]] void bad_parameter(const Parts&... parts) {
  throw Failure(CUDNN_STATUS_BAD_PARAM, joined(parts...));
}
template <typename... Parts>
[[noreturn]] void not_supported(const Parts&... parts) {
  throw Failure(CUDNN_STATUS_NOT_SUPPORTED, joined(parts...));
}

// Throws BAD_PARAM unless a number is from 0 up to `most`, as the enumerators of `what` are.
template <typename Value>
void check_range(const std::string& what, Value value, int most) {
  const auto number = static_cast<int>(value);
  if (number < 0 || number > most) bad_parameter(what, " ", number, ": 0 to ", most);
}

// Throws for the pointer at this place that it is NULL.
[[noreturn]] void report_null(const char* names, std::ptrdiff_t place);

// Throws BAD_PARAM for NULL, as cuDNN's legacy functions do, not BAD_PARAM_NULL_POINTER. `names` holds a name
// for each pointer, separated by a comma and a space.
inline void require(const char* names, std::initializer_list<const void*> pointers) {
  const auto* const null = std::find(pointers.begin(), pointers.end(), nullptr);
  if (null != pointers.end()) report_null(names, null - pointers.begin());
}

// Keeps the message for cudnnGetLastErrorString in this thread, and returns the status.
cudnnStatus_t record_failure(cudnnStatus_t status, const char* message) noexcept;

// Runs the body of a function that only reads a descriptor. No exception leaves the library.
template <typename Body>
cudnnStatus_t reading(Body&& body) {
  try {
    body();
    return CUDNN_STATUS_SUCCESS;
  } catch (const Failure& failure) {
    return record_failure(failure.status(), failure.what());
  } catch (const std::bad_alloc&) {
    return record_failure(CUDNN_STATUS_ALLOC_FAILED, "out of memory");
  } catch (const std::invalid_argument& error) {
    return record_failure(CUDNN_STATUS_BAD_PARAM, error.what());
  } catch (const std::exception& error) {
    return record_failure(CUDNN_STATUS_INTERNAL_ERROR, error.what());
  } catch (...) {
    return record_failure(CUDNN_STATUS_INTERNAL_ERROR, "unknown exception");
  }
}

// Runs the body of any other function. No cancellation takes effect inside of it, either.
template <typename Body>
cudnnStatus_t guarded(Body&& body) {
  const EntryGuard guard;
  return reading(body);
}

// Writes the first values to these places, one to each.
template <typename Values>
void write_each(const Values& values, std::initializer_list<int*> places) {
  auto value = values.begin();
  for (int* const place : places) *place = static_cast<int>(*value++);
}

// Defines the functions that create and destroy a descriptor, which messages call by `name`.
#define MUCUDNN_DEFINE_DESCRIPTOR(Kind, name)                                          \
  cudnnStatus_t cudnnCreate##Kind##Descriptor(cudnn##Kind##Descriptor_t* created) {    \
    return guarded([&] {                                                               \
      require(name, {created});                                                        \
      *created = new cudnn##Kind##Struct;                                              \
    });                                                                                \
  }                                                                                    \
                                                                                       \
  cudnnStatus_t cudnnDestroy##Kind##Descriptor(cudnn##Kind##Descriptor_t descriptor) { \
    delete descriptor;                                                                 \
    return CUDNN_STATUS_SUCCESS;                                                       \
  }

// Defines the functions that set and get one member of a descriptor. `check` throws for a wrong value.
#define MUCUDNN_DEFINE_MEMBER(Function, Kind, name, Type, member, check)                 \
  cudnnStatus_t cudnnSet##Function(cudnn##Kind##Descriptor_t descriptor, Type member) {  \
    return guarded([&] {                                                                 \
      require(name, {descriptor});                                                       \
      check;                                                                             \
      descriptor->member = member;                                                       \
    });                                                                                  \
  }                                                                                      \
                                                                                         \
  cudnnStatus_t cudnnGet##Function(cudnn##Kind##Descriptor_t descriptor, Type* member) { \
    return reading([&] {                                                                 \
      require(name ", " #member, {descriptor, member});                                  \
      *member = descriptor->member;                                                      \
    });                                                                                  \
  }

// Returns the bytes of one element. Throws BAD_PARAM for a type that the host engine does not know.
std::size_t size_of(cudnnDataType_t type);

}  // namespace mucudnn::host
