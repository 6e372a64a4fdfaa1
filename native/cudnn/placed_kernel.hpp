// An algorithm that computes a part of a convolution at its place in the caller's tensors: a tile of a
// sample, or some channels of a slice. A tensor on which the algorithm cannot compute there is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/channels.hpp"
#include "core/scratch.hpp"
#include "core/tiles.hpp"
#include "cudnn/device.hpp"
#include "cudnn/engine.hpp"

namespace mucudnn {

// The place of a part in a tensor of the caller, as bytes of each of its planes.
struct Place {
  Place(const Pieces& pieces, bool copies);
  // Places a tile whose first row is the row `begin` of the sample. The rows from `first_row` up to
  // `last_row` are its own.
  Place(const Rows& sample, const Rows& tile, std::int64_t begin_row, std::int64_t first_row,
        std::int64_t last_row, bool copies);

  std::size_t copy_size() const { return is_copied ? aligned(planes * width) : 0; }

  bool is_copied;
  std::size_t planes, pitch;
  std::int64_t begin;  // the byte of the first plane at which the part begins; below 0 in the padding
  std::size_t width;   // the bytes of the part in each plane
  // The range of bytes of the part that lies inside the caller's tensor. The rest is padding, filled with
  // zeros.
  std::size_t from, to;
  std::size_t first, last;  // the bytes of an output that the part computes
};

// Copies a part into packed memory, and an output back. Both work in stream order.
void copy_in(Device& device, char* copy, const char* tensor, const Place& place, cudaStream_t stream);
void copy_out(Device& device, char* tensor, const char* copy, const Place& place, cudaStream_t stream);

class PlacedKernel final : public PreparedKernel {
 public:
  // Gives the algorithm `workspace` bytes. `whole` is the caller's kernel.
  PlacedKernel(Device& device, std::shared_ptr<const PreparedKernel> prepared, const Kernel& whole,
               const Place& x, const Place& y, std::size_t workspace);

  std::size_t workspace() const override { return copies_size_ + workspace_; }
  std::string notes() const override { return prepared_->notes(); }
  std::size_t kept_filter_size() const override { return prepared_->kept_filter_size(); }
  void keep_filter(const char* w, char* kept) const override { prepared_->keep_filter(w, kept); }
  void execute(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace) const override;

 private:
  // Returns whether the tensor of y's shape at this index of the epilogue is copied with y.
  bool is_read(std::size_t operand) const;

  Device& device_;
  std::shared_ptr<const PreparedKernel> prepared_;
  Pass pass_;
  Epilogue epilogue_;
  Place x_, y_;
  std::size_t copies_size_, workspace_;
};

}  // namespace mucudnn
