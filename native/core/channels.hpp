// The geometry of channel groups: parts of a kernel along its channels, for algorithms whose workspace does
// not fit even for one sample, because the transform of the filter alone is too large.
//
// A group is an ordinary kernel with some of the channels, and is measured as one. Its pass says which
// channels these are:
//
//   forward           output channels (a slice of y and w)
//   backward_data     input channels (a slice of x and w)
//   backward_filter   output channels, or with `of_inputs` input channels
//
// A grouped convolution (groups > 1) keeps its own groups whole, and x, w and y are all sliced. A group
// divides the mini-batch as any kernel does. A packed slice is used in place. Algorithms that take strides
// use an unpacked slice of x or y in place, too; any other unpacked slice is copied through scratch memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/kernel.hpp"
#include "core/tensors.hpp"

namespace mucudnn {

// Returns the number of channels that groups divide; 1 if the kernel cannot be divided into groups.
//
// Convolutions with mixed types or layouts cannot be divided. Neither can fused convolutions that add a
// tensor of y's shape with a factor other than 0, because the program may pass y itself as this tensor: if a
// group failed, the whole convolution would run again and add what the first groups wrote.
std::int64_t divided_channels(const Kernel& kernel, bool of_inputs = false);

// Returns the number that the channels of each group are a multiple of: the channels of one of the
// convolution's own groups.
std::int64_t channel_unit(const Kernel& kernel, bool of_inputs = false);

// Returns the numbers of channels that groups may have: a half of the channels, a quarter, and so on.
std::vector<std::int64_t> channel_counts(const Kernel& kernel, bool of_inputs = false);

// Returns the kernel of a group of that many channels. Throws std::invalid_argument.
Kernel group_kernel(const Kernel& kernel, std::int64_t channels, bool of_inputs = false);

// Pieces of memory, each `pitch` bytes after the one before.
struct Pieces {
  std::size_t offset;  // from the beginning of the tensor to the first piece
  std::size_t width;   // bytes of one piece
  std::size_t pitch;
  std::size_t count;
  bool is_packed() const { return count == 1 || width == pitch; }
  // Returns whether all pieces are aligned as packed memory is.
  bool is_aligned() const { return width == 0 || pitch % (width & (~width + 1)) == 0; }
  // Returns whether any algorithm can compute on the pieces where they are.
  bool is_in_place() const { return is_packed() && is_aligned(); }
  std::size_t bytes() const { return width * count; }
};

// The input and output channels of a group: those from `first` on of the channels that groups divide.
struct ChannelRange {
  ChannelRange(const Kernel& kernel, std::int64_t first, std::int64_t channels, bool of_inputs = false);
  std::int64_t in_first = 0;
  std::int64_t in_count;
  std::int64_t out_first = 0;
  std::int64_t out_count;
};

// Returns the part of a tensor that belongs to a group: of w, and of `samples` samples of x and y.
Pieces filter_pieces(const Kernel& kernel, const ChannelRange& range);
Pieces x_pieces(const Kernel& kernel, const ChannelRange& range, std::int64_t samples);
Pieces y_pieces(const Kernel& kernel, const ChannelRange& range, std::int64_t samples);

// Returns the pitch of a slice of a group's x and y in place. It is 0 for a tensor that every algorithm takes
// in place, and for an unaligned tensor, which none takes.
Pitch slice_pitch(const Kernel& kernel, const ChannelRange& range, std::int64_t samples);

// Returns the bytes of the copies of a slice of a channel group: of the group's part of w, and of x and y
// unless the algorithm takes strides. The algorithm's workspace follows them.
std::size_t group_copies(const Kernel& kernel, std::int64_t channels, std::int64_t samples,
                         bool of_inputs = false, bool takes_strides = false);

}  // namespace mucudnn
