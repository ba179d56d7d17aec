// The smallest useful client: asks one question and prints the answer as it streams in.
//   client-example ENDPOINT "QUESTION"
// SPDX-License-Identifier: Apache-2.0
#include <iostream>

#include "client/cpp/ringmaster.h"

int main(int argc, char** argv) {
  using namespace ringmaster;
  if (argc != 3) {
    std::cerr << "usage: client-example ENDPOINT QUESTION   (`ringmaster status` shows the endpoint)\n";
    return 2;
  }
  auto client = client::Client::connect(argv[1]);
  if (!client) {
    std::cerr << client.error().message << "\n";
    return 1;
  }
  client::Request request;
  request.prompt = std::vector<client::ChatMessage>{{"user", argv[2]}};
  request.max_tokens = 64;
  const auto answer = client->generate(
      request, [](const client::Piece& piece) { std::cout << piece.text << std::flush; }, 60 * kSecond);
  if (!answer) {
    std::cerr << answer.error().message << "\n";
    return 1;
  }
  std::cout << "\n";
  if (answer->ending.code != Code::kOk) {
    std::cerr << name(answer->ending.code) << ": " << answer->ending.message << "\n";
    return 1;
  }
  return 0;
}
