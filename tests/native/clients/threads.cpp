// Eight threads, each with its own handle, stream and tensors, ask like Caffe and convolve repeatedly. Thread
// i multiplies alpha by i + 1, so that mixed-up tensors change the result. The output holds the last result
// of each thread, one after another.
#include <thread>

#include "caffe_habit.h"

int main(int count, char** arguments) {
  constexpr int kThreads = 8, kRounds = 10;
  const Options options = read_options(count, arguments);
  std::vector<Client> clients;
  for (int i = 0; i < kThreads; ++i) {
    Options own = options;
    own.alpha *= i + 1;
    clients.push_back(open_client(&own));
  }
  char* values = read_values(&clients[0], 0);
  std::vector<std::thread> threads;
  for (const Client& client : clients) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        upload(&client, values);
        const Selection selection = select(client, options.limit);
        convolve_within(&client, selection.algorithm, selection.workspace);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  FILE* file = fopen(options.output, "wb");
  for (const Client& client : clients) {
    download(&client, file);
    close_client(&client);
  }
  if (fclose(file) != 0) fail(options.output, "cannot be written");
  free(values);
}
