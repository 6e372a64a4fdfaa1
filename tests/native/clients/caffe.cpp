// Asks for an algorithm like Caffe, and convolves.
#include "caffe_habit.h"

int main(int count, char** arguments) {
  const Options options = read_options(count, arguments);
  const Client client = open_client(&options);
  char* values = read_values(&client, 0);
  upload(&client, values);
  const Selection selection = select(client, options.limit);
  convolve_within(&client, selection.algorithm, selection.workspace);
  report(selection.algorithm, selection.workspace);
  write_output(&client, options.output);
  free(values);
  close_client(&client);
}
