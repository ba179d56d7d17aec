// Perplexity of SmolLM2 on the cpu device over that of the float32 reference: quality.perplexity_ratio.
//
// The text and the reference are those of ../shared/goldens/smollm2: windows of 512 tokens without overlap
// and without BOS, each scoring its tokens 1..511. Every token is a row of its own that samples; a logit bias
// makes the given next token the sampled one, and its log-probability is that of the raw logits.
#include <CLI/CLI.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "base/config.h"
#include "base/gguf.h"
#include "bench/device_driver.h"
#include "gpu-worker/device/cpu/cpu_device.h"
#include "tokenizer-worker/text/tokenizer.h"

namespace ringmaster::gpu_worker {
namespace {

constexpr uint32_t kWindow = 512;
constexpr uint32_t kRows = 64;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    BenchDevice::fail(path +
                      " cannot be read: the reference text lies in the shared folder beside the project");
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

// Sum of the negative log-probabilities of ids 1.. of a window.
double score(BenchDevice& device, const std::vector<TokenId>& ids) {
  double sum = 0;
  for (uint32_t position = 0; position + 1 < ids.size();) {
    StepPlan plan;
    for (Lane lane = 0; lane < kRows && position + 1 < ids.size(); ++lane, ++position) {
      LaneOpen open{.lane = lane, .logprobs = 1};
      open.sampling.logit_bias = {{ids[position + 1], 100}};
      plan.opens.push_back(open);
      const uint32_t blocks = position / device->info().block_tokens + 1;
      plan.rows.push_back({.lane = lane,
                           .first_id = static_cast<uint32_t>(plan.ids.size()),
                           .num_tokens = 1,
                           .first_position = position,
                           .first_block = 0,
                           .num_blocks = blocks,
                           .samples = true});
      plan.ids.push_back(ids[position]);
    }
    for (BlockId block = 0; block < kWindow / device->info().block_tokens; ++block)
      plan.blocks.push_back(block);
    const std::vector<TokenId> scored(ids.begin() + position + 1 - static_cast<long>(plan.rows.size()),
                                      ids.begin() + position + 1);
    const StepResult result = device.step(std::move(plan));
    for (size_t i = 0; i < scored.size(); ++i) {
      if (result.rows[i].failed || result.rows[i].id != scored[i])
        BenchDevice::fail("a scored token was not sampled");
      sum -= static_cast<double>(result.rows[i].logprob);
    }
  }
  return sum;
}

int run(const std::string& model, const std::string& folder) {
  const Gguf file = BenchDevice::take(Gguf::open(model));
  const auto tokenizer = BenchDevice::take(tokenizer_worker::load_tokenizer(file));
  std::vector<TokenId> ids;
  tokenizer->encode(read_file(folder + "/perplexity.txt"), false, ids);
  const nlohmann::json reference = nlohmann::json::parse(read_file(folder + "/perplexity.json"));
  if (ids.size() != reference["tokens"].get<size_t>())
    BenchDevice::fail("the text has " + std::to_string(ids.size()) + " tokens; the reference counted " +
                      reference["tokens"].dump());
  GpuWorkerConfig config;
  config.max_running = kRows;
  config.kv_memory = 64ull << 20;
  BenchDevice device([&](shm::Doorbell& bell) { return make_cpu_device(config, model, bell); });
  double sum = 0;
  size_t scored = 0;
  for (size_t first = 0; first < ids.size(); first += kWindow) {
    const size_t end = std::min(ids.size(), first + kWindow);
    sum += score(device, {ids.begin() + static_cast<long>(first), ids.begin() + static_cast<long>(end)});
    scored += end - first - 1;
  }
  const double perplexity = std::exp(sum / static_cast<double>(scored));
  std::printf("quality.perplexity %.4f perplexity\n", perplexity);
  std::printf("quality.perplexity_ratio %.5f ratio\n", perplexity / reference["perplexity"].get<double>());
  return 0;
}

}  // namespace
}  // namespace ringmaster::gpu_worker

int main(int argc, char** argv) {
  std::string model, folder = RINGMASTER_SHARED_DIR "/goldens/smollm2";
  CLI::App app("Perplexity on the cpu device against the float32 reference");
  app.add_option("--model", model, "path of the SmolLM2 .gguf; default: of the model cache");
  app.add_option("--reference", folder, "folder with perplexity.txt and perplexity.json");
  CLI11_PARSE(app, argc, argv);
  using ringmaster::gpu_worker::BenchDevice;
  if (model.empty()) model = BenchDevice::take(ringmaster::resolve_model("smollm2"));
  return ringmaster::gpu_worker::run(model, folder);
}
