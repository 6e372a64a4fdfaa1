// Declares mucudnn_real_<name> for each hook: the trampoline that jumps to the library's function.
#pragma once

#include "abi/cudnn_backend.h"

extern "C" {
#define EXPORT(name)
#define HOOK(name) __attribute__((visibility("hidden"))) decltype(::name) mucudnn_real_##name;
#include "shim/entry/exports.def"
#undef HOOK
#undef EXPORT
}
