#include "cudnn/placed_kernel.hpp"

#include <algorithm>
#include <utility>

namespace mucudnn {

void copy_in(Device& device, char* copy, const char* tensor, const Place& place, cudaStream_t stream) {
  const auto [is_copied, planes, pitch, begin, width, from, to, first, last] = place;
  if (from > 0) device.clear_pieces(copy, width, from, planes, stream);
  if (to > from) {
    device.copy_pieces(copy + from, width, tensor + begin + from, pitch, to - from, planes, stream);
  }
  if (to < width) device.clear_pieces(copy + to, width, width - to, planes, stream);
}

void copy_out(Device& device, char* tensor, const char* copy, const Place& place, cudaStream_t stream) {
  device.copy_pieces(tensor + place.begin + place.first, place.pitch, copy + place.first, place.width,
                     place.last - place.first, place.planes, stream);
}

Place::Place(const Pieces& pieces, bool copies)
    : is_copied(copies),
      planes(pieces.count),
      pitch(pieces.pitch),
      begin(static_cast<std::int64_t>(pieces.offset)),
      width(pieces.width),
      from(0),
      to(width),
      first(0),
      last(width) {}

Place::Place(const Rows& sample, const Rows& tile, std::int64_t begin_row, std::int64_t first_row,
             std::int64_t last_row, bool copies)
    : is_copied(copies), planes(sample.planes), pitch(sample.pitch()), width(tile.pitch()) {
  const auto bytes = [&](std::int64_t rows) { return rows * static_cast<std::int64_t>(sample.size); };
  const std::int64_t from_row = std::clamp<std::int64_t>(-begin_row, 0, tile.count);
  begin = bytes(begin_row);
  from = static_cast<std::size_t>(bytes(from_row));
  to = static_cast<std::size_t>(bytes(std::clamp(sample.count - begin_row, from_row, tile.count)));
  first = static_cast<std::size_t>(bytes(first_row - begin_row));
  last = static_cast<std::size_t>(bytes(last_row - begin_row));
}

PlacedKernel::PlacedKernel(Device& device, std::shared_ptr<const PreparedKernel> prepared,
                           const Kernel& whole, const Place& x, const Place& y, std::size_t workspace)
    : device_(device),
      prepared_(std::move(prepared)),
      pass_(whole.pass),
      epilogue_(whole.problem.epilogue),
      x_(x),
      y_(y),
      copies_size_(x.copy_size() + y.copy_size()),
      workspace_(workspace) {
  for (std::size_t i = 0; i < epilogue_.size(); ++i) {
    if (is_read(i)) copies_size_ += y.copy_size();
  }
}

bool PlacedKernel::is_read(std::size_t operand) const {
  return operand_of(epilogue_[operand].kind) == Operand::like_y && epilogue_[operand].factor != 0;
}

void PlacedKernel::execute(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace) const {
  Arguments part = arguments;
  char* next = workspace.data;
  const auto take = [&](char*& tensor, const Place& place, bool reads) {
    if (!place.is_copied) {
      tensor += place.begin;
      return;
    }
    if (reads) copy_in(device_, next, tensor, place, arguments.stream);
    tensor = std::exchange(next, next + place.copy_size());
  };
  const bool reads_output = arguments.beta != 0;
  take(part.tensors.x, x_, pass_ != Pass::backward_data || reads_output);
  take(part.tensors.y, y_, pass_ != Pass::forward || reads_output);
  if (part.fusion && !y_.is_copied) {
    part.fusion->z += y_.begin;
  } else if (part.fusion) {
    // The legacy API's z may be y itself.
    if (part.fusion->z_scale != 0)
      copy_in(device_, part.tensors.y, arguments.fusion->z, y_, arguments.stream);
    part.fusion->z = part.tensors.y;
  }
  for (std::size_t i = 0; i < epilogue_.size(); ++i) {
    if (is_read(i) || (operand_of(epilogue_[i].kind) == Operand::like_y && !y_.is_copied))
      take(part.tensors.operands[i], y_, true);
  }
  prepared_->execute(handle, part, {next, workspace_});
  if (pass_ == Pass::forward && y_.is_copied)
    copy_out(device_, arguments.tensors.y, part.tensors.y, y_, arguments.stream);
  if (pass_ == Pass::backward_data && x_.is_copied)
    copy_out(device_, arguments.tensors.x, part.tensors.x, x_, arguments.stream);
}

}  // namespace mucudnn
