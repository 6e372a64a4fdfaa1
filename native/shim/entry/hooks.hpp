// The real functions behind the hooks: what the trampolines of these names lead to.
#pragma once

#include "abi/cudnn_backend.h"

extern "C" {
#define HOOK(name) __attribute__((visibility("hidden"))) decltype(::name) mucudnn_real_##name;
#include "shim/entry/hooks.def"
#undef HOOK
}
