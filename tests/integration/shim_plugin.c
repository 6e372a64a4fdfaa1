/* shim_plugin FILE: opens a library with RTLD_DEEPBIND, like some plugin systems, and runs its main. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char** arguments) {
  void* plugin = count == 2 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND) : NULL;
  if (plugin == NULL) {
    fprintf(stderr, "%s\n", count == 2 ? dlerror() : "usage: shim_plugin FILE");
    return 1;
  }
  int (*run)(int, char**);
  *(void**)&run = dlsym(plugin, "main");
  return run(1, arguments);
}
