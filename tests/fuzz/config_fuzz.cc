// Any text as cluster.yaml. What is accepted survives being written and read again.
#include "base/config.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ringmaster;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto config = parse_cluster_yaml(text, "fuzz.yaml");
  if (!config) {
    FUZZ_CHECK(config.error().message.find("fuzz.yaml") != std::string::npos);
    return 0;
  }
  const auto again = parse_cluster_yaml(to_yaml(*config), "fuzz.yaml");
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(*again == *config);
  return 0;
}
