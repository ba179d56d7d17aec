// Writes small GGUF files (version 3) for tests of what is accepted and refused.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/gguf.h"

namespace ringmaster::gpu_worker {

struct GgufBuilder {
  struct Tensor {
    TensorType type;
    std::vector<uint64_t> shape;
  };
  std::map<std::string, std::string> texts;
  std::map<std::string, uint32_t> integers;
  std::map<std::string, float> floats;
  std::map<std::string, Tensor> tensors;

  // A llama of one layer that everything accepts: hidden 64, two heads of 32, vocabulary 40, all F32.
  static GgufBuilder llama() {
    GgufBuilder b;
    b.texts = {{"general.architecture", "llama"}, {"general.name", "tiny"}};
    b.integers = {{"llama.block_count", 1},
                  {"llama.embedding_length", 64},
                  {"llama.feed_forward_length", 96},
                  {"llama.attention.head_count", 2},
                  {"llama.attention.head_count_kv", 1},
                  {"llama.context_length", 128}};
    b.floats = {{"llama.rope.freq_base", 10000.0f}, {"llama.attention.layer_norm_rms_epsilon", 1e-5f}};
    const auto f32 = [](std::vector<uint64_t> shape) { return Tensor{TensorType::kF32, std::move(shape)}; };
    b.tensors = {{"token_embd.weight", f32({64, 40})},        {"output_norm.weight", f32({64})},
                 {"blk.0.attn_norm.weight", f32({64})},       {"blk.0.attn_q.weight", f32({64, 64})},
                 {"blk.0.attn_k.weight", f32({64, 32})},      {"blk.0.attn_v.weight", f32({64, 32})},
                 {"blk.0.attn_output.weight", f32({64, 64})}, {"blk.0.ffn_norm.weight", f32({64})},
                 {"blk.0.ffn_gate.weight", f32({64, 96})},    {"blk.0.ffn_up.weight", f32({64, 96})},
                 {"blk.0.ffn_down.weight", f32({96, 64})}};
    return b;
  }

  // Writes the file under the test's temporary folder. Floats are small and differ; other types are zero.
  std::string write(const std::string& name = "model.gguf") const {
    std::string out = "GGUF";
    put<uint32_t>(out, 3);
    put<uint64_t>(out, tensors.size());
    put<uint64_t>(out, texts.size() + integers.size() + floats.size());
    for (const auto& [key, value] : texts) {
      put_text(out, key);
      put<uint32_t>(out, 8);
      put_text(out, value);
    }
    for (const auto& [key, value] : integers) {
      put_text(out, key);
      put<uint32_t>(out, 4);
      put(out, value);
    }
    for (const auto& [key, value] : floats) {
      put_text(out, key);
      put<uint32_t>(out, 6);
      put(out, value);
    }
    uint64_t offset = 0;
    for (const auto& [key, tensor] : tensors) {
      put_text(out, key);
      put(out, static_cast<uint32_t>(tensor.shape.size()));
      for (const uint64_t n : tensor.shape) put(out, n);
      put(out, static_cast<uint32_t>(tensor.type));
      put(out, offset);
      offset += (bytes(tensor) + 31) / 32 * 32;
    }
    out.resize((out.size() + 31) / 32 * 32);
    for (const auto& [key, tensor] : tensors) {
      const size_t start = out.size();
      if (tensor.type == TensorType::kF32)
        for (size_t i = 0; i < bytes(tensor) / 4; ++i)
          put(out, static_cast<float>((i * 37 + start) % 101) * 0.004f - 0.2f);
      out.resize(start + (bytes(tensor) + 31) / 32 * 32);
    }
    // Tests of one binary run side by side as processes of their own.
    const std::string path = testing::TempDir() + "rm-" + std::to_string(getpid()) + "-" + name;
    std::ofstream(path, std::ios::binary) << out;
    static Written written;
    written.paths.insert(path);
    return path;
  }

 private:
  // Removes at the end of the process what was written in it.
  struct Written {
    ~Written() {
      for (const std::string& path : paths) unlink(path.c_str());
    }
    std::set<std::string> paths;
  };

  static size_t bytes(const Tensor& tensor) {
    uint64_t values = 1;
    for (const uint64_t n : tensor.shape) values *= n;
    switch (tensor.type) {
      case TensorType::kF32:
        return values * 4;
      case TensorType::kQ8_0:
        return values / 32 * 34;
      case TensorType::kQ4_1:
        return values / 32 * 20;
      case TensorType::kQ4_K:
        return values / 256 * 144;
      case TensorType::kQ5_0:
        return values / 32 * 22;
      default:
        return values * 2;
    }
  }
  template <typename T>
  static void put(std::string& out, T value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  static void put_text(std::string& out, const std::string& text) {
    put<uint64_t>(out, text.size());
    out += text;
  }
};

}  // namespace ringmaster::gpu_worker
