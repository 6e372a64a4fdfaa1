// Asks for the workspace of thousands of kernels that differ in height, and convolves with each. The kernels
// come in four batches of the given size. Prints by how many bytes the memory in use grew in that batch after
// the first in which it grew least: caches fill in one batch or another, but a leak shows in all of them.
#include <malloc.h>

#include <algorithm>

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
  long least = 0;
  for (int batch = 0; batch < 4; ++batch) {
    const size_t before = used_bytes();
    for (int i = 1; i <= kernels; ++i) convolve_with_height(options, batch * kernels + i);
    const long grown = (long)(used_bytes() - before);
    least = batch <= 1 ? grown : std::min(least, grown);
  }
  printf("grew by %ld bytes\n", least);
}
