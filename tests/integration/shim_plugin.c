/* shim_plugin FILE: runs the main of a library that is opened as some plugin systems do, with RTLD_DEEPBIND.
 */
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
