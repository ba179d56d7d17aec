// coldstart.first_token: from `ringmaster up` (exec) to the first token at a client that was waiting already,
// the model in the page cache. Each round is a new cluster; the median and the worst of the rounds are
// printed. SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "client/cpp/ringmaster.h"

namespace {

using namespace ringmaster;

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "coldstart: %s\n", what.c_str());
  std::exit(1);
}

Nanos round(const char* ringmaster, const std::string& config_file, const std::string& endpoint) {
  const Nanos start = monotonic_now();
  const pid_t pid = fork();
  if (pid == 0) {
    if (!freopen("/dev/null", "w", stderr)) _exit(126);
    execl(ringmaster, ringmaster, "up", "-c", config_file.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  auto client = client::Client::connect(endpoint);
  if (!client) die(client.error().message);
  client::Request request;
  request.prompt = std::string("The capital of France is");
  request.max_tokens = 1;
  Nanos first = 0;
  const auto answer = client->generate(
      request,
      [&](const client::Piece& piece) {
        if (first == 0 && !piece.ids.empty()) first = monotonic_now() - start;
      },
      30 * kSecond);
  kill(pid, SIGTERM);
  int state = 0;
  waitpid(pid, &state, 0);
  if (!answer) die(answer.error().message);
  if (first == 0) die("no token: " + answer->ending.message);
  return first;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) die("usage: coldstart RINGMASTER ROUNDS");
  std::string dir = "/tmp/rmbench-XXXXXX";
  if (!mkdtemp(dir.data())) die("no temporary directory");
  const std::string config_file = dir + "/cluster.yaml";
  FILE* file = std::fopen(config_file.c_str(), "w");
  if (!file) die("cannot write " + config_file);
  std::fprintf(file, "name: coldstart\nstate_dir: %s/state\n", dir.c_str());
  std::fclose(file);
  std::vector<Nanos> times;
  for (int i = 0; i < std::max(1, std::atoi(argv[2])); ++i)
    times.push_back(round(argv[1], config_file, "ipc://" + dir + "/state/clients.sock"));
  std::sort(times.begin(), times.end());
  std::printf("coldstart.first_token %.3f s\n", static_cast<double>(times[times.size() / 2]) / kSecond);
  std::printf("coldstart.first_token_worst %.3f s\n", static_cast<double>(times.back()) / kSecond);
}
