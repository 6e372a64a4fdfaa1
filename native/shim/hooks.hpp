// The real functions behind the hooks: what the trampolines of these names lead to.
#pragma once

#include "cudnn/backend_abi.h"

extern "C" {
#define HOOK(name) __attribute__((visibility("hidden"))) decltype(::name) mucudnn_real_##name;
#include "shim/hooks.def"
#undef HOOK
}
