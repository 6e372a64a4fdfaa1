/* shim_symbols [local|global|deepbind]: for each SYMBOL(name) of symbols.h, prints the file that provides it.
 * With LINKED it is linked against libcudnn.so.9, otherwise it opens that name. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef LINKED
#define SYMBOL(name) void name(void);
#include "symbols.h"
#undef SYMBOL
/* Calls, so that there are entries which the loader binds at start-up or at the first call. */
void call_everything(void);
void call_everything(void) {
#define SYMBOL(name) name();
#include "symbols.h"
#undef SYMBOL
}
static void* open_library(const char* scope) {
  (void)scope;
  return NULL;
}
#define ADDRESS(library, name) (*(void**)&(void (*)(void)){name})
#else
static void* open_library(const char* scope) {
  int flags = RTLD_NOW | RTLD_LOCAL;
  if (strcmp(scope, "global") == 0) flags = RTLD_NOW | RTLD_GLOBAL;
  if (strcmp(scope, "deepbind") == 0) flags = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
  void* library = dlopen("libcudnn.so.9", flags);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
  return library;
}
#define ADDRESS(library, name) dlsym(library, #name)
#endif

static void print(const char* name, const void* address) {
  Dl_info info;
  printf("%s %s\n", name, address != NULL && dladdr(address, &info) != 0 ? info.dli_fname : "nowhere");
}

int main(int count, char** arguments) {
  void* library = open_library(count > 1 ? arguments[1] : "local");
  (void)library;
#define SYMBOL(name) print(#name, ADDRESS(library, name));
#include "symbols.h"
  return 0;
}
