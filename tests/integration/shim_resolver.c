/* Replaces the shim's search for cuDNN: its trampolines lead to the library that the variable REAL names. */
#include <dlfcn.h>
#include <stdlib.h>

static const char* const kNames[] = {
#define EXPORT(name) #name,
#include "exports.def"
};

__attribute__((visibility("hidden"))) extern void* mucudnn_slots[];
__attribute__((visibility("hidden"))) void* mucudnn_resolve(size_t index);
void* mucudnn_resolve(size_t index) {
  void* function = dlsym(dlopen(getenv("REAL"), RTLD_NOW | RTLD_LOCAL), kNames[index]);
  __atomic_store_n(&mucudnn_slots[index], function, __ATOMIC_RELEASE);
  return function;
}
