// fuzz_seeds FOLDER: writes the seeds of every target anew: valid messages, records, files, and scripts that
// use them.
#include <filesystem>
#include <fstream>

#include "shm/handshake.h"
#include "shm/records.h"
#include "tests/fuzz/handshake_seeds.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/seed_messages.h"
#include "tests/fuzz/vocabulary.h"
#include "tests/gpu-worker/model/gguf_builder.h"

namespace ringmaster::fuzz {
namespace {

namespace fs = std::filesystem;

fs::path folder;

void write(const std::string& target, const std::string& name, std::string_view bytes) {
  fs::create_directories(folder / target);
  std::ofstream(folder / target / name, std::ios::binary) << bytes;
}
template <typename T>
std::string raw(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
void write_messages() {
  int door = 0;
  for (const auto& messages : {router_messages(), client_messages(), tokenizer_messages(), gpu_messages()}) {
    for (const Named& m : messages)
      write("messages", std::to_string(door) + "_" + m.name, Script().byte(door).text(m.bytes).bytes());
    ++door;
  }
}

// Peers of router_fuzz.cc as its operations: 0..6 modulo 7, the high bit means the clients' door.
constexpr int kClientA = 133, kClientB = 134, kTok0 = 65, kGpu1 = 68;
static_assert(kClientA % 7 == 0 && kClientB % 7 == 1 && kTok0 % 7 == 2 && kGpu1 % 7 == 5);

void write_router() {
  const auto m = router_messages();
  const auto client = [&](const char* name) { return Script().byte(kClientA).sized(of(m, name)).bytes(); };
  const auto worker = [&](const char* name) { return Script().byte(kTok0).sized(of(m, name)).bytes(); };
  for (const char* name : {"generate_full", "generate_resumed", "ping", "status_query", "tokenize"})
    write("router", name, client(name));
  write("router", "life", client("generate_text") + worker("streams") + client("acks") + worker("heartbeat"));
  write("router", "cancelled", client("generate_text") + client("cancel") + worker("streams"));
  write("router", "query", client("tokenize") + worker("tokenized"));
  write("router", "resumed",
        client("generate_text") + Script().byte(kClientB).sized(of(m, "generate_text")).bytes() +
            worker("streams"));
  write(
      "router", "second_gpu",
      Script().byte(kGpu1).sized(of(m, "register_gpu")).bytes() + worker("linked") + client("generate_full"));
  write("router", "silence",
        client("generate_full") + Script().byte(63).byte(63).bytes() + worker("heartbeat") +
            worker("register_tok"));
}

// ---- between the workers ----

std::string tokens_record(Epoch epoch, uint32_t first, const std::vector<uint32_t>& ids, uint32_t tops) {
  std::string bytes = raw(shm::TokensRecord{1, static_cast<uint32_t>(ids.size()), 0});
  for (const uint32_t id : ids) bytes += raw(shm::TokenRow{epoch, first++, id, -0.5f, tops});
  for (size_t i = 0; i < ids.size() * tops; ++i) bytes += raw(msg::TokenLogprob(20, -0.5f));
  return bytes;
}
std::string ended_record(Epoch epoch, uint32_t output_tokens, std::string_view message) {
  shm::EndedRecord record{};
  record.epoch = epoch;
  record.output_tokens = output_tokens;
  record.message_size = static_cast<uint32_t>(message.size());
  return raw(record) + std::string(message);
}
constexpr int kTokens = static_cast<int>(shm::RecordType::kTokens),
              kEnded = static_cast<int>(shm::RecordType::kEnded);

void write_tokenizer_worker() {
  const auto m = tokenizer_messages();
  const auto message = [&](const char* name) { return Script().byte(0).sized(of(m, name)).bytes(); };
  const auto record = [](int type, const std::string& bytes) {
    return Script().byte(1).byte(type).sized(bytes).bytes();
  };
  const std::string encode = Script().byte(2).bytes(), second = Script().byte(3).byte(30).bytes();
  write("tokenizer_worker", "life",
        message("assign") + encode + record(kTokens, tokens_record(1, 0, {30, 31}, 0)) + message("acked") +
            record(kEnded, ended_record(1, 2, "")) + second + message("forget"));
  write("tokenizer_worker", "full",
        message("assign_full") + encode + record(kTokens, tokens_record(2, 0, {45, 45, 45}, 2)) + second);
  write("tokenizer_worker", "resumed",
        message("assign_resumed") + encode + message("resend") + message("end"));
  write("tokenizer_worker", "resend",
        message("assign") + encode + record(kTokens, tokens_record(1, 0, {30, 31}, 0)) + message("resend") +
            message("acked"));
  write("tokenizer_worker", "gpu_workers",
        message("gpu_workers") + Script().byte(5).bytes() + second + second);
  write("tokenizer_worker", "query",
        message("query") + encode + Script().byte(4).bytes() + second + message("drain"));
  write("token_records", "tokens", Script().byte(kTokens).sized(tokens_record(1, 0, {30, 31}, 2)).bytes());
  write("token_records", "ended", Script().byte(kEnded).sized(ended_record(1, 2, "why")).bytes());
  const std::string body = ended_record(1, 2, "why");
  write("token_records", "ring",
        Script()
            .byte(0)
            .number<uint64_t>(128)
            .number(static_cast<uint32_t>(8 + body.size()))
            .number<uint32_t>(kEnded)
            .text(body)
            .bytes());
}

std::string prompt(Epoch epoch, uint32_t count) {
  std::string ids;
  for (uint32_t i = 0; i < count; ++i) ids += raw(i * 7 % 300);
  return Script()
      .byte(1)
      .byte(static_cast<int>(shm::RecordType::kPrompt))
      .sized(raw(shm::PromptRecord{epoch, count, count}) + ids)
      .bytes();
}
std::string command(shm::RecordType type, const std::string& bytes) {
  return Script().byte(0).byte(static_cast<int>(type)).sized(bytes).bytes();
}
std::string start(Epoch epoch, uint32_t count, uint32_t max_tokens, uint32_t granted, int priority = 0) {
  shm::StartRecord r{};
  r.epoch = epoch;
  r.max_tokens = max_tokens;
  r.granted = granted;
  r.priority = priority;
  r.top_p = r.repetition_penalty = 1;
  r.logprobs = 3;
  r.stop_id_count = r.bias_count = 1;
  return prompt(epoch, count) +
         command(shm::RecordType::kStart, raw(r) + raw<uint32_t>(1) + raw(msg::LogitBias(7, -1.0f)));
}

void write_gpu_worker() {
  const std::string tick = Script().byte(2).byte(22).bytes(), read = Script().byte(3).bytes();
  std::string steps, filling;
  for (int i = 0; i < 12; ++i) steps += tick;
  write("gpu_worker", "life", start(1, 9, 8, 64) + steps + read);
  write("gpu_worker", "grants",
        start(1, 9, 20, 2) + steps + command(shm::RecordType::kGrant, raw(shm::GrantRecord{1, 9, 0})) +
            steps + read + command(shm::RecordType::kStopAt, raw(shm::StopAtRecord{1, 5, 0})) + steps);
  write("gpu_worker", "cancel",
        start(1, 40, 20, 64) + tick + command(shm::RecordType::kCancel, raw(shm::CancelRecord{1})) + steps);
  write("gpu_worker", "rebind",
        start(1, 5, 9, 64) + command(shm::RecordType::kRebind, raw(shm::RebindRecord{1, 2, 3, 4})) + steps);
  for (Epoch epoch = 1; epoch <= 6; ++epoch)
    filling += start(epoch, 30, 60, 64, static_cast<int>(epoch % 3)) + tick;
  write("gpu_worker", "pressure", filling + steps + steps + steps + steps + read + steps + steps);
  write("gpu_worker", "death",
        start(1, 9, 8, 64) + tick + Script().byte(6).bytes() + start(2, 9, 8, 64) + steps);
  write("gpu_worker", "spoiled",
        start(1, 9, 8, 64) + tick +
            Script().byte(5).byte(0).byte(0).sized("").byte(0).number<uint64_t>(4096).bytes() + tick);
  for (const Named& m : gpu_messages())
    write("gpu_worker", m.name, start(1, 9, 8, 64) + tick + Script().byte(4).sized(m.bytes).bytes() + steps);
}

void write_client() {
  const auto m = client_messages();
  const auto message = [&](const char* name) { return Script().byte(0).sized(of(m, name)).bytes(); };
  const std::string take = Script().byte(2).bytes(), second = Script().byte(1).byte(30).bytes();
  write("client", "life", message("accepted") + message("stream") + take);
  write("client", "gap",
        message("accepted") + Script().byte(0).sized(to_client(stream(1, 2, 2, true))).bytes() + second +
            message("stream") + take);
  msg::StreamT uneven = stream(1, 0, 0, false);
  uneven.chunks[0]->logprobs.pop_back();
  write("client", "uneven_logprobs",
        message("accepted") + Script().byte(0).sized(to_client(std::move(uneven))).bytes() + take);
  write("client", "answers", message("rejected") + message("status") + message("tokenize_reply") + take);
  write("client", "new_router",
        message("accepted") + message("pong") + second + message("status") + second + message("pong"));
}

// ---- files and text ----

void write_ring() {
  const auto header = [](uint32_t size, uint32_t type) { return Script().number(size).number(type).bytes(); };
  const std::string peek = Script().byte(3).bytes(), pop = Script().byte(4).bytes();
  const std::string begin = Script().byte(0).byte(0).bytes();  // at position 0
  write("ring", "consume",
        begin + Script().byte(2).byte(0).byte(8).text(header(64, 1)).byte(0).byte(0).byte(4).bytes() + peek +
            pop + peek);
  write("ring", "pad",
        Script().byte(0).byte(63).bytes() +
            Script().byte(2).byte(252).byte(8).text(header(64, 0)).byte(0).byte(0).byte(70).bytes() + peek +
            pop);
  write("ring", "produce",
        begin +
            Script()
                .byte(5)
                .byte(1)
                .number<uint16_t>(900)
                .byte(6)
                .byte(5)
                .byte(1)
                .number<uint16_t>(1900)
                .byte(6)
                .byte(7)
                .byte(1)
                .byte(0)
                .byte(15)
                .byte(7)
                .bytes() +
            peek + pop);
}

void write_file(const std::string& target, const std::string& name, const std::string& from) {
  fs::create_directories(folder / target);
  fs::copy_file(from, folder / target / name, fs::copy_options::overwrite_existing);
  fs::remove(from);
}
void write_gguf() {
  const std::string path = (fs::temp_directory_path() / "rm-seed.gguf").string();
  small_vocabulary().write(path);
  write_file("gguf", "vocabulary", path);
  auto model = gpu_worker::GgufBuilder::llama();
  model.integers["llama.embedding_length"] = 32;
  model.integers["llama.feed_forward_length"] = 32;
  model.integers["llama.attention.head_count"] = 1;
  using Tensor = gpu_worker::GgufBuilder::Tensor;
  for (auto& [name, tensor] : model.tensors) {
    const bool vector = tensor.shape.size() == 1, table = name == "token_embd.weight";
    const bool quantised = name.find("ffn_") != std::string::npos && !vector;
    tensor = vector ? Tensor{TensorType::kF32, {32}}
                    : Tensor{quantised ? TensorType::kQ4_1 : TensorType::kF16, {32, table ? 8u : 32u}};
  }
  write_file("gguf", "model", model.write("rm-seed-model.gguf"));
}

void write_config() {
  write("config", "small",
        "name: blue\nmodel: smollm2\nrouter:\n  max_live_requests: 16\n  client_lease: 30s\n");
  write("config", "fake",
        "gpu-worker:\n  device: fake\n  kv_memory: 64MiB\n  cores: [0, 1]\n  prefix_cache: false\n  fake:\n  "
        "  mode: text\n    ids: [1, 2]\n    vocab_size: 10\n    step_time: 2ms\n");
  write("config", "anchors", "router: &r {credit_tokens: 7}\ntokenizer-worker: *r\n");
  write("config", "home", "model: ~//models/../m.gguf\n");
  write("config", "no_value", ",na~lmax:ve_re\n 0");  // yaml-cpp finds empty documents in it for ever
  write("config", "default", default_cluster_yaml());
}

void write_templates() {
  const auto template_of = [](std::string_view source, std::string_view json = "") {
    return std::string(source) + '\0' + std::string(json);
  };
  write("chat_template", "loop",
        template_of("{% for m in messages %}<|{{ m['role'] }}|>\n{{ m.content | trim }}<|end|>\n{% endfor "
                    "%}{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
                    R"({"messages":[{"role":"user","content":"Hi"}],"add_generation_prompt":true})"));
  write("chat_template", "macro",
        template_of("{%- macro turn(m, n=1) -%}{{ bos_token ~ m.role|upper ~ n }}{{ caller() if caller }}{%- "
                    "endmacro -%}{% for m in messages if m.role != 'system' %}{{ turn(m, loop.index0) }}{% "
                    "else %}none{% endfor %}"));
  write("chat_template", "namespace",
        template_of("{% set ns = namespace(x=0, y=[]) %}{% for m in messages[::-1] %}{% set ns.x = ns.x + "
                    "m.content|length %}{% set ns.y = ns.y + [m] %}{% endfor %}{{ ns.x }}{{ ns.y | "
                    "tojson(indent=2) }}"));
  write("chat_template", "texts",
        template_of("{{ messages[0].content.split('e')|join('-')|replace('B','\\u0041') }}{{ '%05.2f|%s' % "
                    "(1.5, 'x') }}{{ 'a,b'.split(',')|map('upper')|list }}{{ strftime_now('%Y-%m-%d') }}"));
  write("chat_template", "numbers",
        template_of("{{ 7 // 2 }}{{ -7 % 3 }}{{ 2 ** 10 }}{{ 1e3 }}{{ 3.7|round|int }}{{ range(3)|sum }}{{ "
                    "[3,1,2]|sort(reverse=true)|first }}{{ 1 < 2 <= 2 and not none }}"));
  write("chat_template", "tools",
        template_of("{% if tools is defined and tools is iterable %}{% for t in tools %}{{ t | tojson }}{{ "
                    "t.get('name', '') }}{% for k, v in t.items() %}{{ k }}={{ v }}{% endfor %}{% endfor "
                    "%}{% endif %}{{ raise_exception('no') if not tools }}",
                    R"({"tools":[{"name":"f","args":{"a":1.5,"b":[null,true]}}]})"));
  write("chat_template", "whitespace",
        template_of("{#- note -#}  {%- filter indent(2) %}\nx\n y{% endfilter -%}  {% raw %}{{ }}{% endraw "
                    "%}{% call(x) m() %}{{ x }}{% endcall %}"));
  write("chat_template", "tests",
        template_of("{{ 1 is odd }}{{ 'a' in 'abc' }}{{ x is none }}{{ x | default('d', true) }}{{ messages "
                    "| selectattr('role', 'equalto', 'user') | map(attribute='content') | list | last }}{{ "
                    "'Ab c'.title().swapcase().center(9) }}{{ messages|batch(2)|list|length }}{{ 'long words "
                    "here'|wordwrap(5) }}{{ {'a': 1}|dictsort }}{{ messages|groupby('role') }}"));
}

void write_tokenizer() {
  const auto script = [](int flags, std::string_view stop, std::string_view text,
                         const std::vector<uint16_t>& ids) {
    Script s;
    s.byte(flags).byte(static_cast<int>(stop.size())).text(stop).byte(0).sized(text);
    for (const uint16_t id : ids) s.number(id);
    return s.bytes();
  };
  write("tokenizer", "text",
        script(4, "ab", "ab ab  12\n<|im_end|> caf\xC3\xA9 it's \xF0\x9F\x98\x80<tool>", {100, 101, 0, 102}));
  write("tokenizer", "broken",
        script(3, "\xEF\xBF\xBD", "x",
               {3 + 0xF0, 3 + 0x9F, 1, 3 + 0x98, 3 + 0x80, 3 + 0xC3, 3 + 'a', 3 + 0xE4}));
  write("tokenizer", "long",
        script(0, "aab", std::string(150, 'a') + std::string(80, ' ') + "aab", {100, 100, 101}));
}

void write_handshake() {
  constexpr int kBell = 0, kSlot = 1;
  shm::Hello hello{shm::kHandshakeMagic, shm::kLayoutVersion, 18, kHandshakeInstance, "tokenizer-worker.0"};
  const auto say = [](std::string_view message) {
    return Script().byte(0).byte(1).byte(kBell).sized(message).bytes();
  };
  const std::string silent = Script().byte(2).bytes();
  write("handshake", "hello", say(raw(hello)));
  write("handshake", "three_want_two", say(raw(hello)) + silent + say(raw(hello)) + say(raw(hello)));
  hello.gpu_instance = kHandshakeInstance - 1;
  write("handshake", "former_instance", say(raw(hello)) + silent);
  hello.version = 2;
  write("handshake", "other_version", say(raw(hello)));
  const auto& sizes = kHandshakeSizes;
  shm::Reply reply{
      shm::kHandshakeMagic, shm::kLayoutVersion, 0, 0, 0, kHandshakeInstance, sizes.command_bytes,
      sizes.prompt_bytes,   sizes.token_bytes};
  const auto answer = [](std::string_view message) {
    return Script().byte(1).byte(2).byte(kSlot).byte(kBell).sized(message).bytes();
  };
  write("handshake", "reply", answer(raw(reply)) + Script().number<uint16_t>(0).byte(0).bytes());
  constexpr uint16_t kTokenHead = 128 + 2 * 128;  // LAYOUT.md
  write("handshake", "reply_with_token",
        answer(raw(reply)) + Script()
                                 .number(kTokenHead)
                                 .byte(8)
                                 .number<uint64_t>(64)
                                 .number<uint16_t>(4096 + 4096 + 8192)
                                 .byte(8)
                                 .number<uint32_t>(16)
                                 .number<uint32_t>(32)
                                 .bytes());
  reply.code = static_cast<uint32_t>(Code::kResourceExhausted);
  write("handshake", "refusal", Script().byte(1).byte(0).sized(raw(reply)).bytes() + say(raw(hello)));
}

// ---- what the launcher reads ----

void write_log_reader() {
  const auto line = [](int process, int64_t time, int text) {
    return Script().byte(1).byte(process).number(time).byte(text).bytes();
  };
  const auto append = [](int process, std::string_view bytes) {
    return Script().byte(0).byte(process).sized(bytes).bytes();
  };
  const auto rotate = [](int process) { return Script().byte(2).byte(process).bytes(); };
  const std::string look = Script().byte(3).byte(0).bytes();
  write("log_reader", "merged", line(0, 3, 1) + line(1, 2, 2) + line(2, 4, 3) + line(2, 3, 4));
  write("log_reader", "rotated",
        line(2, 1, 1) + look + line(2, 2, 2) + rotate(2) + line(2, 3, 3) + rotate(2) + look + line(2, 4, 4) +
            line(0, 9, 5) + rotate(0) + rotate(0) + line(0, 1, 6));
  write("log_reader", "half",
        append(0, "{\"t\":7,\"text\":\"half") + look + append(0, " a line\"}\n") + append(1, "no end") +
            rotate(1) + line(1, 5, 5));
  write("log_reader", "fields",
        append(2,
               "{\"t\":1700000000123456789,\"level\":\"warning\",\"process\":\"router\",\"uid\":\"00ff\","
               "\"text\":\"a\\u001b[2J\\nb\"}\n[1]\n{\"t\":\"x\"}\n\n"));
}
void write_launcher() {
  write("launcher", "supervisor",
        Script()
            .byte(0)
            .text(R"({"name":"lab","pid":7,"start_ticks":99,"started_at":17,"state":"ready",)"
                  R"("client_endpoint":"ipc:///x/c","worker_endpoint":"ipc:///x/w","children":[{"name":)"
                  R"("router","pid":8,"state":"ready","restarts":2,"started_at":5,"last_end":"killed"}]})")
            .bytes());
  using namespace std::string_view_literals;
  write("launcher", "arguments",
        Script()
            .byte(1)
            .text("--config\0/run/c.yaml\0--name\0gpu-worker.3\0--ready-fd\0"
                  "3\0"sv)
            .bytes());
  write("launcher", "lines", Script().byte(2).byte(7).byte(2).text("one\n\na long line\nhalf").bytes());
  write("launcher", "merged", Script().byte(3).text("a\tb\x1B[2J").bytes());
  write("launcher", "memory",
        Script()
            .byte(4)
            .sized("MemTotal:  16 kB\nMemAvailable:   1200000 kB\n")
            .sized("1:name=x:/\n0::/a\n")
            .sized("1000000\n")
            .sized("900000\n")
            .sized("anon 5\nfile 4096\n")
            .bytes());
}

}  // namespace
}  // namespace ringmaster::fuzz

int main(int argc, char** argv) {
  using namespace ringmaster::fuzz;
  if (argc != 2) return std::fprintf(stderr, "usage: fuzz_seeds FOLDER\n"), 2;
  folder = argv[1];
  write_messages();
  write_router();
  write_tokenizer_worker();
  write_gpu_worker();
  write_client();
  write_ring();
  write_gguf();
  write_config();
  write_templates();
  write_tokenizer();
  write_handshake();
  write_log_reader();
  write_launcher();
}
