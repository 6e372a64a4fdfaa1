// Convolves, forks, and convolves again in both processes: the child with a new handle, the parent with its
// old one. The child writes FILE.child, next to the output of the parent.
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "caffe_habit.h"

static void run(const Client& client, const Options& options, const char* values, const std::string& output) {
  upload(&client, values);
  const Selection selection = select(client, options.limit);
  convolve_within(&client, selection.algorithm, selection.workspace);
  write_output(&client, output.c_str());
}

int main(int count, char** arguments) {
  const Options options = read_options(count, arguments);
  const Client client = open_client(&options);
  char* values = read_values(&client, 0);
  run(client, options, values, options.output);
  const pid_t child = fork();
  if (child < 0) fail("fork", "failed");
  if (child == 0) {
    const Client own = open_client(&options);
    run(own, options, values, std::string(options.output) + ".child");
    close_client(&own);
    exit(0);
  }
  run(client, options, values, options.output);
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) fail("the child", "failed");
  free(values);
  close_client(&client);
}
