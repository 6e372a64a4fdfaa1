#include "core/kernel.hpp"

namespace mucudnn {

std::string to_text(const Kernel& kernel) { return to_text(kernel.problem) + " " + name_of(kernel.pass); }

}  // namespace mucudnn
