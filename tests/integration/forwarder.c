/* A library that exports functions of cuDNN without versions, and forwards them to a cuDNN that it opens by
 * its name when one is first called, as TensorFlow's library does. With EIGHT it is written for cuDNN 8: it
 * calls a function that cuDNN 9 dropped. */
#include <dlfcn.h>
#include <stddef.h>

#ifdef EIGHT
#define LIBRARY "libcudnn.so.8"
#else
#define LIBRARY "libcudnn.so.9"
#endif

static void* find(const char* name) {
  void* const library = dlopen(LIBRARY, RTLD_LAZY);
  return library == NULL ? NULL : dlsym(library, name);
}

size_t cudnnGetVersion(void) {
  size_t (*const function)(void) = (size_t (*)(void))find("cudnnGetVersion");
  return function == NULL ? 0 : function();
}
int cudnnCreate(void** handle) {
  int (*const function)(void**) = (int (*)(void**))find("cudnnCreate");
  return function == NULL ? 1 : function(handle);
}
int cudnnRNNForwardTraining(void) { return find("cudnnRNNForwardTraining") == NULL; }

/* Called by the tests. The calls go through the loader's tables. */
size_t ask_version(void) { return cudnnGetVersion(); }
int ask_handle(void) { return cudnnCreate(NULL); }
#ifdef EIGHT
int ask_dropped(void) { return cudnnRNNForwardTraining(); }
#endif
