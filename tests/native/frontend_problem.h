// The code that programs written against cudnn-frontend share: the problem that their arguments describe, and
// its tensors.
//
// arguments: OPERATION CHOICE LAYOUT TYPE n,c,[d,]h,w k,c,[t,]r,s padding,stride
// The programs read x, w, y, residual and bias from stdin, in this order.
#pragma once

#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace fe = cudnn_frontend;
using Sizes = std::vector<int64_t>;
using Memory = std::vector<char>;

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

inline void check(const std::string& what, bool good, const std::string& message) {
  if (good) return;
  std::fprintf(stderr, "%s: %s\n", what.c_str(), message.c_str());
  std::exit(1);
}

inline Sizes numbers(const char* text) {
  Sizes values;
  for (char* end = nullptr; *text != '\0'; text = *end == ',' ? end + 1 : end) {
    values.push_back(std::strtoll(text, &end, 10));
  }
  return values;
}

struct Problem {
  std::string operation;
  bool channels_last;
  fe::DataType_t type;
  Sizes x, w, y, bias;
  int64_t padding, stride;

  Sizes strides(const Sizes& sizes) const {
    Sizes result(sizes.size());
    int64_t step = channels_last ? sizes[1] : 1;
    for (size_t axis = sizes.size() - 1; axis > 1; --axis) {
      result[axis] = step;
      step *= sizes[axis];
    }
    result[1] = channels_last ? 1 : step;
    result[0] = channels_last ? step : step * sizes[1];
    return result;
  }
  size_t bytes(const Sizes& sizes) const {
    int64_t count = type == fe::DataType_t::FLOAT ? 4 : 2;
    for (const int64_t size : sizes) count *= size;
    return static_cast<size_t>(count);
  }
};

inline Problem read_problem(char** arguments) {
  Problem problem;
  problem.operation = arguments[1];
  problem.channels_last = std::string(arguments[3]) == "nhwc";
  const std::map<std::string, fe::DataType_t> types = {
      {"f32", fe::DataType_t::FLOAT}, {"f16", fe::DataType_t::HALF}, {"bf16", fe::DataType_t::BFLOAT16}};
  problem.type = types.at(arguments[4]);
  problem.x = numbers(arguments[5]);
  problem.w = numbers(arguments[6]);
  problem.padding = numbers(arguments[7])[0];
  problem.stride = numbers(arguments[7])[1];
  problem.y = {problem.x[0], problem.w[0]};
  problem.bias = Sizes(problem.x.size(), 1);
  problem.bias[1] = problem.w[0];
  for (size_t axis = 2; axis < problem.x.size(); ++axis) {
    problem.y.push_back((problem.x[axis] + 2 * problem.padding - problem.w[axis]) / problem.stride + 1);
  }
  return problem;
}

inline std::vector<Memory> read_tensors(const Problem& problem) {
  std::vector<Memory> tensors;
  for (const Sizes& sizes : {problem.x, problem.w, problem.y, problem.y, problem.bias}) {
    tensors.emplace_back(problem.bytes(sizes));
    check("stdin",
          std::fread(tensors.back().data(), 1, tensors.back().size(), stdin) == tensors.back().size(),
          "too short");
  }
  return tensors;
}

// Opens the libcudnn.so.9 that the loader finds, for all functions of cudnn-frontend, and creates a handle.
inline cudnnHandle_t open_cudnn() {
  cudnn_frontend::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW);
  check("dlopen", cudnn_frontend::cudnn_dlhandle != nullptr, "no libcudnn.so.9");
  cudnnHandle_t handle = nullptr;
  check("handle", fe::detail::create_handle(&handle) == CUDNN_STATUS_SUCCESS, "cudnnCreate");
  return handle;
}
