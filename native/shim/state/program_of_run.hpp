// The program that `mucudnn run` became. It says at its end if neither it nor a child ever called cuDNN.
//
// Nobody else says so: a training program starts many helpers that have nothing to do with cuDNN.
#pragma once

namespace mucudnn::shim {

// Lets the program of `mucudnn run` know that this process has called cuDNN.
void tell_program_of_run() noexcept;

}  // namespace mucudnn::shim
