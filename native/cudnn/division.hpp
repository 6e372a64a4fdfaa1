// Division of the mini-batch into slices, each with its algorithm.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cudnn/configuration.hpp"
#include "cudnn/device.hpp"
#include "cudnn/filter_sum.hpp"

namespace mucudnn {

struct Slice {
  std::int64_t micro_batch = 0;
  std::string algorithm;

  bool operator==(const Slice& other) const {
    return micro_batch == other.micro_batch && algorithm == other.algorithm;
  }
};

// Thrown if a slice cannot be prepared.
class SliceRefused : public EngineError {
 public:
  SliceRefused(Slice slice, const std::string& reason) : EngineError(reason), slice_(std::move(slice)) {}
  const Slice& slice() const { return slice_; }

 private:
  Slice slice_;
};

// Returns the parts in an order in which each begins at a multiple of the greatest power of two in its size,
// so that its tensors have the alignment that its algorithm was planned for. Throws std::invalid_argument,
// with the text `refusal` and the size of the whole, unless the sizes are positive and add up to the whole.
template <typename Part>
std::vector<Part> in_order(std::vector<Part> parts, std::int64_t Part::* size, std::int64_t whole,
                           const std::string& refusal) {
  std::int64_t left = whole;
  for (const Part& part : parts) left = part.*size < 1 || part.*size > left ? -1 : left - part.*size;
  if (left != 0) throw std::invalid_argument(refusal + std::to_string(whole));
  const auto power = [&](const Part& part) { return part.*size & -(part.*size); };
  std::stable_sort(parts.begin(), parts.end(),
                   [&](const Part& a, const Part& b) { return power(a) > power(b); });
  return parts;
}
std::vector<Slice> in_order(const std::vector<Slice>& slices, std::int64_t mini_batch);

// Returns the addresses of the tensors from sample `first` on.
Tensors advanced(const Problem& problem, const Tensors& tensors, std::int64_t first, const Pitch& pitch = {});

// Returns the arguments for the samples from `first` on, after those before it are computed.
Arguments advanced(const Kernel& kernel, const Arguments& arguments, std::int64_t first,
                   const Pitch& pitch = {});

class Division final : public PreparedConfiguration {
 public:
  // Throws SliceRefused for a slice that cannot be prepared, EngineError if the slices cannot be summed, and
  // std::invalid_argument if they do not add up to the mini-batch.
  Division(Engine& engine, Device& device, const Kernel& kernel, const std::vector<Slice>& slices);
  // Takes x and y with this pitch, on which `prepare` makes the algorithm of a slice run.
  using Prepare = std::function<std::unique_ptr<PreparedKernel>(const Kernel& slice, const std::string&)>;
  Division(Device& device, const Kernel& kernel, const std::vector<Slice>& slices, const Pitch& pitch,
           const Prepare& prepare);

  std::size_t workspace() const override { return algorithms_workspace_ + accumulator_size_; }
  std::size_t kept_filter_size() const override { return kept_filter_size_; }
  void keep_filter(const char* w, char* kept) const override;
  // The slice whose algorithm needs the most workspace.
  const Slice& slice_with_most_workspace() const { return slice_with_most_workspace_; }
  // The notes of each algorithm, as in Candidate::notes.
  std::vector<std::string> notes() const;
  void run(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace) const override;
  // Runs like the function above, but leaves out the tiles of the first sample that are `done` already. If it
  // throws, the output holds the result of `done` alone.
  void run(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace, Progress& done) const;

 private:
  struct Step {
    std::int64_t micro_batch;
    const PreparedKernel* prepared;
    std::size_t kept_filter_at;  // the offset of the algorithm's kept filter
  };

  Device& device_;
  Kernel kernel_;
  Pitch pitch_;
  std::map<std::pair<std::int64_t, std::string>, std::unique_ptr<PreparedKernel>> prepared_;
  std::vector<Step> steps_;
  std::size_t algorithms_workspace_ = 0;
  Slice slice_with_most_workspace_;
  std::size_t accumulator_size_ = 0;
  std::size_t kept_filter_size_ = 0;
};

}  // namespace mucudnn
