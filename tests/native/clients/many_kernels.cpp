// Asks for the workspace of thousands of kernels that differ in height, and convolves with each. The kernels
// come in batches of the given size. Prints by how many bytes the memory in use grew in the last batch.
#include <malloc.h>

#include "client.h"

static size_t used_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

static void convolve_with_height(const Options& options, int height) {
  Options own = options;
  own.input[0] = height;
  const Client client = open_client(&own);
  size_t size = 0;
  CUDNN(cudnnGetConvolutionForwardWorkspaceSize(client.handle, client.x_descriptor, client.w_descriptor,
                                                client.convolution, client.y_descriptor,
                                                (cudnnConvolutionFwdAlgo_t)own.algorithm, &size));
  memset(client.x, 0, client.x_size);
  memset(client.w, 0, client.w_size);
  convolve_within(&client, own.algorithm, size);
  close_client(&client);
}

int main(int count, char** arguments) {
  const Options options = read_options(count, arguments);
  const int kernels = (int)options.limit;
  size_t before = 0;
  for (int i = 0; i < 2 * kernels; ++i) {
    if (i == kernels) before = used_bytes();
    convolve_with_height(options, 1 + i);
  }
  printf("grew by %ld bytes\n", (long)(used_bytes() - before));
}
