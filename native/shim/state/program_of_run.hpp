// The program that `mucudnn run` became. It says at its end if neither it nor a child ever called cuDNN. Its
// children say nothing, because a training program starts many helpers that have nothing to do with cuDNN.
#pragma once

namespace mucudnn::shim {

// Notes that this process has called cuDNN, and lets the program of `mucudnn run` know it.
void note_call_of_cudnn() noexcept;

}  // namespace mucudnn::shim
