/* Runs a fixed algorithm with a workspace that the caller chose. It asks cuDNN nothing before. */
#include "client.h"

int main(int count, char** arguments) {
  const Options options = read_options(count, arguments);
  const Client client = open_client(&options);
  char* values = read_values(&client, 0);
  upload(&client, values);
  convolve_within(&client, options.algorithm, options.limit);
  report(options.algorithm, options.limit);
  write_output(&client, options.output);
  free(values);
  close_client(&client);
  return 0;
}
