#include "shim/execution/rescue.hpp"

#include <array>
#include <vector>

#include "core/accumulation.hpp"
#include "cudnn/descriptors.hpp"

namespace mucudnn::shim {
namespace {

// A copy of the caller's tensor descriptor with another number of samples.
class SlicedTensor {
 public:
  // Leaves the copy without a descriptor if the library cannot describe the caller's tensor.
  SlicedTensor(const Library& library, cudnnTensorDescriptor_t from) : library_(library) {
    if (from == nullptr ||
        library.cudnnGetTensorNdDescriptor(from, CUDNN_DIM_MAX, &type_, &dims_, sizes_.data(),
                                           strides_.data()) != CUDNN_STATUS_SUCCESS) {
      return;
    }
    const auto type = data_type_of(type_);
    if (!type) return;  // a vectorized type, which is never sliced
    data_type_ = *type;
    if (library.cudnnCreateTensorDescriptor(&descriptor_) != CUDNN_STATUS_SUCCESS) descriptor_ = nullptr;
  }
  ~SlicedTensor() {
    if (descriptor_ != nullptr) library_.cudnnDestroyTensorDescriptor(descriptor_);
  }
  SlicedTensor(const SlicedTensor&) = delete;
  SlicedTensor& operator=(const SlicedTensor&) = delete;

  bool set_samples(std::int64_t samples) {
    std::array<int, CUDNN_DIM_MAX> sizes = sizes_;
    sizes[0] = static_cast<int>(samples);
    return is_described() && library_.cudnnSetTensorNdDescriptor(descriptor_, type_, dims_, sizes.data(),
                                                                 strides_.data()) == CUDNN_STATUS_SUCCESS;
  }
  bool is_described() const { return descriptor_ != nullptr; }
  std::int64_t samples() const { return sizes_[0]; }
  DataType type() const { return data_type_; }
  cudnnTensorDescriptor_t descriptor() const { return descriptor_; }
  std::int64_t offset(std::int64_t samples) const {
    return samples * strides_[0] * static_cast<std::int64_t>(size_of(data_type_));
  }

 private:
  const Library& library_;
  cudnnTensorDescriptor_t descriptor_ = nullptr;
  cudnnDataType_t type_{};
  DataType data_type_{};
  int dims_ = 0;
  std::array<int, CUDNN_DIM_MAX> sizes_{};
  std::array<int, CUDNN_DIM_MAX> strides_{};
};

// Returns the caller's algorithm first, then algorithms that need little workspace. cuDNN documents these as
// deterministic.
std::vector<unsigned> algorithms_for(const LegacyCall& call) {
  if (call.pass == Pass::forward) {
    return {call.algorithm, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
            CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM};
  }
  return {call.algorithm, call.pass == Pass::backward_data ? unsigned{CUDNN_CONVOLUTION_BWD_DATA_ALGO_1}
                                                           : unsigned{CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1}};
}

// One call of the caller, divided into slices of `size` samples and a smaller last one.
class Slices {
 public:
  Slices(const Library& library, const LegacyCall& call)
      : library_(library),
        call_(call),
        x_(library, call.descriptors.x),
        y_(library, call.descriptors.y),
        z_(library, call.z_descriptor) {}

  bool is_divisible() const {
    return x_.is_described() && y_.is_described() && x_.samples() == y_.samples() &&
           (!call_.fusion || (z_.is_described() && z_.samples() == y_.samples()));
  }
  std::int64_t samples() const { return x_.samples(); }

  // Returns the most slices that the call may have. There is no accumulator, so they are summed in place.
  std::int64_t most_slices() const {
    const std::size_t most = most_slices_in_place(call_.pass, x_.type());
    return static_cast<std::int64_t>(std::min(most, static_cast<std::size_t>(samples())));
  }

  bool all_fit(unsigned algorithm, std::int64_t size) {
    const std::int64_t rest = samples() % size;
    return fits(algorithm, size) && (rest == 0 || fits(algorithm, rest));
  }

  // Runs all slices in order. `done` is the number of samples computed so far.
  cudnnStatus_t run(unsigned algorithm, std::int64_t size, std::int64_t& done) {
    for (done = 0; done < samples(); done += std::min(size, samples() - done)) {
      LegacyCall slice = call_;
      if (!set(slice, std::min(size, samples() - done))) return CUDNN_STATUS_INTERNAL_ERROR;
      slice.tensors.x += x_.offset(done);
      slice.tensors.y += y_.offset(done);
      if (slice.fusion) slice.fusion->z += z_.offset(done);
      const bool is_sum = adds_slices(call_.pass) && done > 0;
      slice.algorithm = algorithm;
      if (is_sum) slice.beta = one();
      if (const auto status = execute(library_, slice); status != CUDNN_STATUS_SUCCESS) return status;
    }
    return CUDNN_STATUS_SUCCESS;
  }

 private:
  const void* one() const {
    static const float single = 1;
    static const double wide = 1;
    return x_.type() == DataType::f64 ? static_cast<const void*>(&wide) : &single;
  }

  bool set(LegacyCall& slice, std::int64_t samples) {
    slice.descriptors.x = x_.descriptor();
    slice.descriptors.y = y_.descriptor();
    if (slice.fusion) slice.z_descriptor = z_.descriptor();
    return x_.set_samples(samples) && y_.set_samples(samples) && (!slice.fusion || z_.set_samples(samples));
  }

  bool fits(unsigned algorithm, std::int64_t samples) {
    LegacyCall slice = call_;
    std::size_t size = 0;
    return set(slice, samples) &&
           get_workspace_size(library_, slice.handle, slice.pass, slice.descriptors, algorithm, size) ==
               CUDNN_STATUS_SUCCESS &&
           size <= (call_.workspace.data == nullptr ? 0 : call_.workspace.size);
  }

  const Library& library_;
  const LegacyCall& call_;
  SlicedTensor x_, y_, z_;
};

}  // namespace

std::int64_t own_workspace(const Library& library, const LegacyCall& call) noexcept {
  std::size_t size = 0;
  const auto status =
      get_workspace_size(library, call.handle, call.pass, call.descriptors, call.algorithm, size);
  return status == CUDNN_STATUS_SUCCESS ? static_cast<std::int64_t>(std::min<std::size_t>(size, kNoLimit))
                                        : 0;
}

bool run_in_slices(const Library& library, const LegacyCall& call, bool lacks_memory,
                   cudnnStatus_t& status) noexcept {
  try {
    Slices slices(library, call);
    if (!slices.is_divisible()) return false;
    std::vector<unsigned> algorithms = algorithms_for(call);
    if (lacks_memory)
      algorithms.resize(1);  // the library may refuse the caller's algorithm for other reasons
    for (const unsigned algorithm : algorithms) {
      for (std::int64_t size = slices.samples(); size > 0; size /= 2) {
        if (lacks_memory && size == slices.samples() && size > 1) continue;
        const std::int64_t count = (slices.samples() + size - 1) / size;
        if (count > slices.most_slices() || !slices.all_fit(algorithm, size)) continue;
        std::int64_t done = 0;
        const auto result = slices.run(algorithm, size, done);
        if (result == CUDNN_STATUS_SUCCESS || done > 0) {
          status = result;
          return true;
        }
        if (lacks_memory && shim::lacks_memory(result)) continue;
        break;  // the library refuses this algorithm for this call
      }
    }
  } catch (const std::bad_alloc&) {
    // Out of memory: the library's own status stands.
  }
  return false;
}

}  // namespace mucudnn::shim
