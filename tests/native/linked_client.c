/* A minimal cuDNN client, linked against libcudnn.so.9 and without our headers.
 * Prints the sums of a 2x2 box filter over 1..9: "12 16 24 28". */
#include <stdio.h>
#include <stdlib.h>

typedef void* pointer;
extern int cudnnCreate(pointer*);
extern int cudnnDestroy(pointer);
extern int cudnnCreateTensorDescriptor(pointer*);
extern int cudnnDestroyTensorDescriptor(pointer);
extern int cudnnSetTensor4dDescriptor(pointer, int, int, int, int, int, int);
extern int cudnnCreateFilterDescriptor(pointer*);
extern int cudnnDestroyFilterDescriptor(pointer);
extern int cudnnSetFilter4dDescriptor(pointer, int, int, int, int, int, int);
extern int cudnnCreateConvolutionDescriptor(pointer*);
extern int cudnnDestroyConvolutionDescriptor(pointer);
extern int cudnnSetConvolution2dDescriptor(pointer, int, int, int, int, int, int, int, int);
extern int cudnnConvolutionForward(pointer, const void*, pointer, const void*, pointer, const void*, pointer,
                                   int, void*, size_t, const void*, pointer, void*);
extern const char* cudnnGetErrorString(int);

static void check(int status) {
  if (status == 0) return;
  fprintf(stderr, "%s\n", cudnnGetErrorString(status));
  exit(1);
}

int main(void) {
  const float one = 1, zero = 0;
  const float x[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, w[4] = {1, 1, 1, 1};
  float y[4];
  pointer handle, x_descriptor, w_descriptor, convolution, y_descriptor;
  check(cudnnCreate(&handle));
  check(cudnnCreateTensorDescriptor(&x_descriptor));
  check(cudnnCreateTensorDescriptor(&y_descriptor));
  check(cudnnCreateFilterDescriptor(&w_descriptor));
  check(cudnnCreateConvolutionDescriptor(&convolution));
  check(cudnnSetTensor4dDescriptor(x_descriptor, 0, 0, 1, 1, 3, 3));
  check(cudnnSetTensor4dDescriptor(y_descriptor, 0, 0, 1, 1, 2, 2));
  check(cudnnSetFilter4dDescriptor(w_descriptor, 0, 0, 1, 1, 2, 2));
  check(cudnnSetConvolution2dDescriptor(convolution, 0, 0, 1, 1, 1, 1, 1, 0));
  check(cudnnConvolutionForward(handle, &one, x_descriptor, x, w_descriptor, w, convolution, 0, NULL, 0,
                                &zero, y_descriptor, y));
  printf("%g %g %g %g\n", y[0], y[1], y[2], y[3]);
  check(cudnnDestroyTensorDescriptor(x_descriptor));
  check(cudnnDestroyTensorDescriptor(y_descriptor));
  check(cudnnDestroyFilterDescriptor(w_descriptor));
  check(cudnnDestroyConvolutionDescriptor(convolution));
  check(cudnnDestroy(handle));
  return 0;
}
