#include "shim/rescue.hpp"

#include <array>
#include <vector>

#include "cudnn/filter_sum.hpp"

namespace mucudnn::shim {
namespace {

// Returns the bytes of an element; 0 for vectorized types, which are never sliced.
std::int64_t size_of_element(cudnnDataType_t type) {
  switch (type) {
    case CUDNN_DATA_DOUBLE:
      return 8;
    case CUDNN_DATA_FLOAT:
      return 4;
    case CUDNN_DATA_HALF:
    case CUDNN_DATA_BFLOAT16:
      return 2;
    default:
      return 0;
  }
}

// A copy of the caller's tensor descriptor with another number of samples.
class SlicedTensor {
 public:
  // Leaves the copy without a descriptor if the library cannot describe the caller's tensor.
  SlicedTensor(const Library& library, cudnnTensorDescriptor_t from) : library_(library) {
    is_described_ = from != nullptr &&
                    library.cudnnGetTensorNdDescriptor(from, CUDNN_DIM_MAX, &type_, &dims_, sizes_.data(),
                                                       strides_.data()) == CUDNN_STATUS_SUCCESS &&
                    size_of_element(type_) > 0 &&
                    library.cudnnCreateTensorDescriptor(&descriptor_) == CUDNN_STATUS_SUCCESS;
  }
  ~SlicedTensor() {
    if (descriptor_ != nullptr) library_.cudnnDestroyTensorDescriptor(descriptor_);
  }
  SlicedTensor(const SlicedTensor&) = delete;
  SlicedTensor& operator=(const SlicedTensor&) = delete;

  bool set_samples(std::int64_t samples) {
    std::array<int, CUDNN_DIM_MAX> sizes = sizes_;
    sizes[0] = static_cast<int>(samples);
    return is_described_ && library_.cudnnSetTensorNdDescriptor(descriptor_, type_, dims_, sizes.data(),
                                                                strides_.data()) == CUDNN_STATUS_SUCCESS;
  }
  bool is_described() const { return is_described_; }
  std::int64_t samples() const { return sizes_[0]; }
  cudnnDataType_t type() const { return type_; }
  cudnnTensorDescriptor_t descriptor() const { return descriptor_; }
  std::int64_t offset(std::int64_t samples) const { return samples * strides_[0] * size_of_element(type_); }

 private:
  const Library& library_;
  bool is_described_ = false;
  cudnnTensorDescriptor_t descriptor_ = nullptr;
  cudnnDataType_t type_{};
  int dims_ = 0;
  std::array<int, CUDNN_DIM_MAX> sizes_{};
  std::array<int, CUDNN_DIM_MAX> strides_{};
};

cudnnStatus_t call(const Library& library, const Execution& e, unsigned algorithm, const void* beta) {
  const CallerDescriptors& d = e.descriptors;
  char* const workspace = e.workspace.data;
  const std::size_t size = e.workspace.size;
  const Tensors& t = e.tensors;
  switch (e.pass) {
    case Pass::forward: {
      const auto forward = static_cast<cudnnConvolutionFwdAlgo_t>(algorithm);
      if (e.fusion) {
        return library.cudnnConvolutionBiasActivationForward(
            e.handle, e.alpha, d.x, t.x, d.w, t.w, d.convolution, forward, workspace, size, e.beta,
            e.z_descriptor, e.fusion->z, e.fusion->bias_descriptor, e.fusion->bias, e.fusion->activation, d.y,
            t.y);
      }
      return library.cudnnConvolutionForward(e.handle, e.alpha, d.x, t.x, d.w, t.w, d.convolution, forward,
                                             workspace, size, beta, d.y, t.y);
    }
    case Pass::backward_data:
      return library.cudnnConvolutionBackwardData(e.handle, e.alpha, d.w, t.w, d.y, t.y, d.convolution,
                                                  static_cast<cudnnConvolutionBwdDataAlgo_t>(algorithm),
                                                  workspace, size, beta, d.x, t.x);
    case Pass::backward_filter:
      break;
  }
  return library.cudnnConvolutionBackwardFilter(e.handle, e.alpha, d.x, t.x, d.y, t.y, d.convolution,
                                                static_cast<cudnnConvolutionBwdFilterAlgo_t>(algorithm),
                                                workspace, size, beta, d.w, t.w);
}

cudnnStatus_t get_workspace(const Library& library, const Execution& e, unsigned algorithm,
                            std::size_t& size) {
  const CallerDescriptors& d = e.descriptors;
  switch (e.pass) {
    case Pass::forward:
      return library.cudnnGetConvolutionForwardWorkspaceSize(
          e.handle, d.x, d.w, d.convolution, d.y, static_cast<cudnnConvolutionFwdAlgo_t>(algorithm), &size);
    case Pass::backward_data:
      return library.cudnnGetConvolutionBackwardDataWorkspaceSize(
          e.handle, d.w, d.y, d.convolution, d.x, static_cast<cudnnConvolutionBwdDataAlgo_t>(algorithm),
          &size);
    case Pass::backward_filter:
      break;
  }
  return library.cudnnGetConvolutionBackwardFilterWorkspaceSize(
      e.handle, d.x, d.y, d.convolution, d.w, static_cast<cudnnConvolutionBwdFilterAlgo_t>(algorithm), &size);
}

// Returns the caller's algorithm first, then algorithms that need little workspace. cuDNN documents all of
// them but the caller's as deterministic.
std::vector<unsigned> algorithms_for(const Execution& e) {
  if (e.pass == Pass::forward) {
    return {e.algorithm, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
            CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM};
  }
  return {e.algorithm, e.pass == Pass::backward_data ? unsigned{CUDNN_CONVOLUTION_BWD_DATA_ALGO_1}
                                                     : unsigned{CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1}};
}

// One call of the caller, divided into slices of `size` samples and a smaller last one.
class Slices {
 public:
  Slices(const Library& library, const Execution& execution)
      : library_(library),
        execution_(execution),
        x_(library, execution.descriptors.x),
        y_(library, execution.descriptors.y),
        z_(library, execution.z_descriptor) {}

  bool is_divisible() const {
    return x_.is_described() && y_.is_described() && x_.samples() == y_.samples() &&
           (!execution_.fusion || (z_.is_described() && z_.samples() == y_.samples()));
  }
  std::int64_t samples() const { return x_.samples(); }

  // Returns the most slices that the pass may have. Every slice of a filter gradient rounds the output once
  // more.
  std::int64_t most_slices() const {
    if (execution_.pass != Pass::backward_filter) return samples();
    if (x_.type() == CUDNN_DATA_HALF) return 1;  // a partial sum may overflow where the total does not
    return x_.type() == CUDNN_DATA_BFLOAT16 ? std::int64_t{kMostSlicesInPlace} : samples();
  }

  bool all_fit(unsigned algorithm, std::int64_t size) {
    const std::int64_t rest = samples() % size;
    return fits(algorithm, size) && (rest == 0 || fits(algorithm, rest));
  }

  // Runs all slices in order. `done` is the number of samples computed so far.
  cudnnStatus_t run(unsigned algorithm, std::int64_t size, std::int64_t& done) {
    for (done = 0; done < samples(); done += std::min(size, samples() - done)) {
      Execution slice = execution_;
      if (!set(slice, std::min(size, samples() - done))) return CUDNN_STATUS_INTERNAL_ERROR;
      slice.tensors.x += x_.offset(done);
      slice.tensors.y += y_.offset(done);
      if (slice.fusion) slice.fusion->z += z_.offset(done);
      const bool is_sum = execution_.pass == Pass::backward_filter && done > 0;
      const void* const beta = is_sum ? one() : execution_.beta;
      if (const auto status = call(library_, slice, algorithm, beta); status != CUDNN_STATUS_SUCCESS)
        return status;
    }
    return CUDNN_STATUS_SUCCESS;
  }

 private:
  const void* one() const {
    static const float single = 1;
    static const double wide = 1;
    return x_.type() == CUDNN_DATA_DOUBLE ? static_cast<const void*>(&wide) : &single;
  }

  bool set(Execution& slice, std::int64_t samples) {
    slice.descriptors.x = x_.descriptor();
    slice.descriptors.y = y_.descriptor();
    if (slice.fusion) slice.z_descriptor = z_.descriptor();
    return x_.set_samples(samples) && y_.set_samples(samples) && (!slice.fusion || z_.set_samples(samples));
  }

  bool fits(unsigned algorithm, std::int64_t samples) {
    Execution slice = execution_;
    std::size_t size = 0;
    return set(slice, samples) && get_workspace(library_, slice, algorithm, size) == CUDNN_STATUS_SUCCESS &&
           size <= (execution_.workspace.data == nullptr ? 0 : execution_.workspace.size);
  }

  const Library& library_;
  const Execution& execution_;
  SlicedTensor x_, y_, z_;
};

}  // namespace

std::int64_t own_workspace(const Library& library, const Execution& execution) noexcept {
  std::size_t size = 0;
  const auto status = get_workspace(library, execution, execution.algorithm, size);
  return status == CUDNN_STATUS_SUCCESS ? static_cast<std::int64_t>(std::min<std::size_t>(size, kNoLimit))
                                        : 0;
}

bool run_in_slices(const Library& library, const Execution& execution, cudnnStatus_t& status) noexcept {
  try {
    Slices slices(library, execution);
    if (!slices.is_divisible()) return false;
    for (const unsigned algorithm : algorithms_for(execution)) {
      for (std::int64_t size = slices.samples(); size > 0; size /= 2) {
        const std::int64_t count = (slices.samples() + size - 1) / size;
        if (count > slices.most_slices() || !slices.all_fit(algorithm, size)) continue;
        std::int64_t done = 0;
        const auto result = slices.run(algorithm, size, done);
        if (result == CUDNN_STATUS_SUCCESS || done > 0) {
          status = result;
          return true;
        }
        break;  // the library refuses this algorithm for this call
      }
    }
  } catch (const std::bad_alloc&) {
    // Out of memory: the library's own status stands.
  }
  return false;
}

}  // namespace mucudnn::shim
