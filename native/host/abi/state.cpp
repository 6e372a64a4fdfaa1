#include "host/abi/state.hpp"

#include <algorithm>
#include <cstdio>
#include <string_view>

namespace mucudnn::host {
namespace {

thread_local char last_error[512] = "";

}  // namespace

void report_null(const char* names, std::ptrdiff_t place) {
  std::string_view rest = names;
  for (; place > 0; --place) rest.remove_prefix(std::min(rest.find(", ") + 2, rest.size()));
  bad_parameter(rest.substr(0, rest.find(", ")), " is NULL");
}

cudnnStatus_t record_failure(cudnnStatus_t status, const char* message) noexcept {
  std::snprintf(last_error, sizeof last_error, "%s", message);
  return status;
}

std::size_t size_of(cudnnDataType_t type) {
  switch (type) {
    case CUDNN_DATA_DOUBLE:
      return 8;
    case CUDNN_DATA_FLOAT:
    case CUDNN_DATA_INT32:
      return 4;
    case CUDNN_DATA_HALF:
    case CUDNN_DATA_BFLOAT16:
      return 2;
    case CUDNN_DATA_INT8:
      return 1;
  }
  bad_parameter("the host engine has no data type ", type);
}

}  // namespace mucudnn::host

extern "C" {

const char* cudnnGetErrorString(cudnnStatus_t status) {
#define MUCUDNN_NAME(enumerator, value) \
  case value:                           \
    return #enumerator;
  switch (static_cast<int>(status)) {
    MUCUDNN_CUDNN_STATUSES(MUCUDNN_NAME)
    default:
      return "CUDNN_UNKNOWN_STATUS";
  }
#undef MUCUDNN_NAME
}

// Reading the message clears it. cuDNN does the same.
void cudnnGetLastErrorString(char* message, size_t size) {
  if (message == nullptr || size == 0) return;
  std::snprintf(message, size, "%s", mucudnn::host::last_error);
  mucudnn::host::last_error[0] = '\0';
}

}  // extern "C"
