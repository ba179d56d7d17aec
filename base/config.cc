#include "base/config.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "base/config_keys.h"
#include "base/models.h"
#include "base/utf8.h"

namespace ringmaster {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxConfigBytes = 1 << 20;  // the documented file has 2 KiB

std::string environment(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? std::string() : std::string(value);
}

// Walks one document. Keeps where each key stood, so that checks across keys can name lines too.
class Reader {
 public:
  Reader(const std::string& source, ClusterConfig& config) : source_(source), config_(config) {}

  Status read(const YAML::Node& root) {
    if (root.IsNull()) return ok_status();
    return read_section(root, "");
  }

  Error error_at(const YAML::Mark& mark, const std::string& what, Code code = Code::kInvalidArgument) const {
    const std::string line = mark.is_null() ? std::string() : ":" + std::to_string(mark.line + 1);
    return {code, source_ + line + ": " + what};
  }
  Error error_at(const std::string& path, const std::string& what) const {
    const auto at = marks_.find(path);
    return error_at(at == marks_.end() ? YAML::Mark::null_mark() : at->second, what);
  }

 private:
  static std::string join(const std::string& section, const std::string& name) {
    return section.empty() ? name : section + "." + name;
  }

  static bool is_section(const std::string& path) {
    const auto keys = config_keys();
    return std::any_of(keys.begin(), keys.end(), [&](const ConfigKey& key) {
      return key.section == path || key.section.starts_with(path + ".");
    });
  }

  Status read_section(const YAML::Node& node, const std::string& section) {
    const std::string where = section.empty() ? "the file" : "section '" + section + "'";
    if (!node.IsMap()) return error_at(node.Mark(), where + " is not a list of 'key: value' lines");
    for (const auto& entry : node) {
      if (!entry.first.IsScalar())
        return error_at(entry.first.Mark(), "a key in " + where + " is not a word");
      const std::string& name = entry.first.Scalar();
      const std::string path = join(section, name);
      if (!marks_.emplace(path, entry.first.Mark()).second)
        return error_at(entry.first.Mark(), "key '" + path + "' is there twice");
      Status status = is_section(path) ? read_subsection(entry.second, path)
                                       : read_value(entry.first.Mark(), entry.second, section, name);
      if (!status.ok()) return status;
    }
    return ok_status();
  }

  Status read_subsection(const YAML::Node& node, const std::string& path) {
    return node.IsNull() ? ok_status() : read_section(node, path);
  }

  Status read_value(const YAML::Mark& mark, const YAML::Node& node, const std::string& section,
                    const std::string& name) {
    const auto keys = config_keys();
    const auto key = std::find_if(keys.begin(), keys.end(),
                                  [&](const ConfigKey& k) { return k.section == section && k.name == name; });
    if (key == keys.end()) return unknown(mark, section, name);
    RawValue raw;
    if (!to_raw(node, raw) || !assign(key->field, raw, config_))
      return error_at(mark, key->path() + " is " + shown(node) + "; allowed: " + allowed(key->field));
    return ok_status();
  }

  static bool to_raw(const YAML::Node& node, RawValue& raw) {
    raw.list = node.IsSequence();
    if (node.IsScalar()) raw.items.push_back(node.Scalar());
    if (raw.list)
      for (const YAML::Node& item : node) {
        if (!item.IsScalar()) return false;
        raw.items.push_back(item.Scalar());
      }
    return node.IsScalar() || node.IsNull() || raw.list;
  }

  static std::string shown(const YAML::Node& node) {
    constexpr size_t kShown = 80;
    if (node.IsNull()) return "empty";
    if (node.IsSequence()) return "a list";
    if (node.IsMap()) return "a section";
    const std::string& text = node.Scalar();
    return "'" + text.substr(0, kShown) + (text.size() > kShown ? "..." : "") + "'";
  }

  // The nearest key of the same section, or the section where this very key belongs.
  Error unknown(const YAML::Mark& mark, const std::string& section, const std::string& name) const {
    std::string nearest;
    size_t best = SIZE_MAX;
    const auto offer = [&](const std::string& candidate, size_t distance) {
      if (distance < best) best = distance, nearest = candidate;
    };
    for (const ConfigKey& key : config_keys()) {
      // The beginning of a key is nearer to it than any misspelling of another.
      const size_t distance =
          key.name.starts_with(name) && key.name != name ? 1 : edit_distance(name, key.name);
      if (key.section == section)
        offer(key.path(), distance);
      else if (distance == 0)
        offer(key.path(), 1);
      // A misspelt section.
      const std::string_view parent =
          key.section.substr(0, std::min(key.section.rfind('.'), key.section.size()));
      const bool child =
          key.section.find('.') == std::string_view::npos ? section.empty() : parent == section;
      if (!key.section.empty() && child) {
        const std::string_view leaf = key.section.substr(key.section.rfind('.') + 1);
        offer(std::string(key.section), edit_distance(name, leaf));
      }
    }
    return error_at(mark, "unknown key '" + join(section, name) + "'; nearest known key: '" + nearest +
                              "' (docs/cluster.md lists all)");
  }

  std::string source_;
  ClusterConfig& config_;
  std::map<std::string, YAML::Mark> marks_;
};

// The longest socket path that this configuration makes.
std::string longest_socket(const ClusterConfig& config) {
  std::string longest = config.state_dir + "/clients.sock";
  const std::string ring = config.ring_socket("gpu-worker." + std::to_string(config.gpu_worker.count - 1));
  return ring.size() > longest.size() ? ring : longest;
}

std::string per_user_directory() {
  return "/tmp/ringmaster-" + std::to_string(getuid());
}

std::string hex_hash(const std::string& text) {
  uint64_t hash = 0xCBF29CE484222325ull;  // FNV-1a: the same name must give the same directory in every build
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  char out[17];
  std::snprintf(out, sizeof out, "%016llx", static_cast<unsigned long long>(hash));
  return out;
}

std::string default_state_dir(const ClusterConfig& config) {
  const std::string runtime = environment("XDG_RUNTIME_DIR");
  std::error_code error;
  const bool usable = !runtime.empty() && runtime[0] == '/' && fs::is_directory(runtime, error) &&
                      access(runtime.c_str(), W_OK | X_OK) == 0;
  ClusterConfig tried = config;
  tried.state_dir = (usable ? runtime + "/ringmaster" : per_user_directory()) + "/" + config.name;
  if (longest_socket(tried).size() <= kMaxSocketPath) return tried.state_dir;
  return per_user_directory() + "/h-" + hex_hash(tried.state_dir);
}

std::string absolute_from(const std::string& source, const std::string& path) {
  const std::string full = path.starts_with("~/") ? environment("HOME") + path.substr(1) : path;
  return fs::absolute(fs::path(source).parent_path() / full).lexically_normal().string();
}

bool is_path(const std::string& model) {
  return model.find('/') != std::string::npos || model.ends_with(".gguf");
}

Status resolve(const Reader& reader, ClusterConfig& config) {
  if (is_path(config.model)) config.model = absolute_from(config.source, config.model);
  const bool given = !config.state_dir.empty();
  config.state_dir = given ? absolute_from(config.source, config.state_dir) : default_state_dir(config);
  while (config.state_dir.size() > 1 && config.state_dir.back() == '/') config.state_dir.pop_back();
  const std::string longest = longest_socket(config);
  if (longest.size() > kMaxSocketPath)
    return reader.error_at("state_dir", "state_dir is '" + config.state_dir + "'; the socket " + longest +
                                            " has " + std::to_string(longest.size()) +
                                            " bytes, a Unix socket path at most " +
                                            std::to_string(kMaxSocketPath) + "; choose a shorter directory");
  const std::string& endpoint = config.router.endpoint;
  if (endpoint.starts_with("ipc://") && endpoint.size() - 6 > kMaxSocketPath)
    return reader.error_at("router.endpoint", "router.endpoint is '" + endpoint + "'; the path has " +
                                                  std::to_string(endpoint.size() - 6) +
                                                  " bytes, a Unix socket path at most " +
                                                  std::to_string(kMaxSocketPath));
  return ok_status();
}

Status check_across(const Reader& reader, const ClusterConfig& config) {
  if (config.tokenizer_worker.count > config.gpu_worker.slots)
    return reader.error_at("tokenizer-worker.count", "tokenizer-worker.count is " +
                                                         std::to_string(config.tokenizer_worker.count) +
                                                         "; allowed: at most gpu-worker.slots, which is " +
                                                         std::to_string(config.gpu_worker.slots));
  const FakeConfig& fake = config.gpu_worker.fake;
  if (fake.vocab_size > 0)
    for (const uint32_t id : fake.ids)
      if (id >= fake.vocab_size)
        return reader.error_at("gpu-worker.fake.ids", "gpu-worker.fake.ids holds " + std::to_string(id) +
                                                          "; allowed: below vocab_size, which is " +
                                                          std::to_string(fake.vocab_size));
  return ok_status();
}

// Notes where a document begins and nothing else.
struct DocumentStart final : YAML::EventHandler {
  YAML::Mark mark;
  void OnDocumentStart(const YAML::Mark& at) override { mark = at; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
  }
  void OnMapEnd() override {}
};

// Not by YAML::LoadAll: yaml-cpp 0.7 leaves text that belongs to no value (", a") where it is, so that
// LoadAll finds another empty document there for ever. Here two are as many as are asked for.
std::optional<YAML::Mark> second_document(std::string_view text) {
  std::istringstream stream{std::string(text)};
  YAML::Parser parser(stream);
  DocumentStart start;
  if (!parser.HandleNextDocument(start) || !parser.HandleNextDocument(start)) return std::nullopt;
  return start.mark;
}

// YAML's own rule for UTF-8 text, which yaml-cpp does not keep: it replaces or drops what breaks it, and the
// value that is served would not be the one that was written.
Status check_characters(const Reader& reader, std::string_view text) {
  const size_t valid = valid_utf8_prefix(text);
  const auto bad = std::find_if(text.begin(), text.begin() + static_cast<ptrdiff_t>(valid), [](char c) {
    return (static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7F;
  });
  const auto at = static_cast<size_t>(bad - text.begin());
  if (at == text.size()) return ok_status();
  const std::string_view before = text.substr(0, at);
  YAML::Mark mark;
  mark.pos = static_cast<int>(at);
  mark.line = static_cast<int>(std::count(before.begin(), before.end(), '\n'));
  return reader.error_at(mark,
                         at == valid ? "bytes that are not UTF-8"
                                     : "the control character " + std::to_string(static_cast<int>(text[at])) +
                                           "; allowed: tab and line ends",
                         at == valid ? Code::kInvalidUtf8 : Code::kMalformed);
}

Result<std::string> read_file(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const Code code = errno == ENOENT ? Code::kNotFound : Code::kPermissionDenied;
    return Error{code, path + ": cannot be opened: " + std::strerror(errno)};
  }
  struct stat info {};
  if (fstat(fd, &info) != 0) {
    const std::string why = std::strerror(errno);
    close(fd);
    return Error{Code::kUnavailable, path + ": cannot be looked at: " + why};
  }
  if (!S_ISREG(info.st_mode)) {
    close(fd);
    return Error{Code::kInvalidArgument, path + ": not a regular file"};
  }
  std::string text(kMaxConfigBytes + 1, '\0');
  size_t size = 0;
  ssize_t got = 0;
  while (size < text.size() && (got = ::read(fd, text.data() + size, text.size() - size)) > 0)
    size += static_cast<size_t>(got);
  const int read_error = errno;
  close(fd);
  if (got < 0) return Error{Code::kInvalidArgument, path + ": cannot be read: " + std::strerror(read_error)};
  text.resize(size);
  return text;
}

}  // namespace

std::string ClusterConfig::client_endpoint() const {
  return router.endpoint.empty() ? "ipc://" + state_dir + "/clients.sock" : router.endpoint;
}
std::string ClusterConfig::worker_endpoint() const {
  return "ipc://" + state_dir + "/workers.sock";
}
std::string ClusterConfig::ring_socket(const std::string& worker) const {
  return state_dir + "/" + worker + ".ring";
}
std::string ClusterConfig::log_file(const std::string& process) const {
  return state_dir + "/logs/" + process + ".jsonl";
}

Result<ClusterConfig> parse_cluster_yaml(std::string_view text, const std::string& source) {
  if (text.size() > kMaxConfigBytes)
    return Error{Code::kTooLarge, source + ": more than " + std::to_string(kMaxConfigBytes) + " bytes"};
  ClusterConfig config;
  config.source = source;
  Reader reader(source, config);
  if (const Status characters = check_characters(reader, text); !characters.ok()) return characters.error();
  try {
    if (const std::optional<YAML::Mark> second = second_document(text))
      return reader.error_at(*second,
                             "a second document, or text that belongs to no value; allowed: one document",
                             Code::kMalformed);
    const Status read = reader.read(YAML::Load(std::string(text)));
    if (!read.ok()) return read.error();
  } catch (const YAML::Exception& error) {
    // yaml-cpp's guard against endless recursion says no more than this.
    const bool too_deep = error.msg == YAML::ErrorMsg::BAD_FILE;
    return reader.error_at(error.mark,
                           too_deep ? "nested too deeply; docs/cluster.md lists all keys" : error.msg,
                           Code::kMalformed);
  }
  for (const Status& status : {resolve(reader, config), check_across(reader, config)})
    if (!status.ok()) return status.error();
  return config;
}

Result<ClusterConfig> load_cluster_yaml(const std::string& path) {
  const Result<std::string> text = read_file(path);
  if (!text.ok()) return text.error();
  return parse_cluster_yaml(text.value(), path);
}

Result<ClusterConfig> default_cluster(const std::string& name) {
  Result<ClusterConfig> config = parse_cluster_yaml(default_cluster_yaml(), "(built-in)");
  if (!config.ok()) return config;
  const ConfigKey& key = config_keys().front();
  if (!assign(key.field, {.items = {name}}, config.value()))
    return Error{Code::kInvalidArgument, "the name is '" + name + "'; allowed: " + allowed(key.field)};
  config->state_dir = default_state_dir(config.value());
  return config;
}

std::string to_yaml(const ClusterConfig& config) {
  std::string out;
  std::string_view section;
  for (const ConfigKey& key : config_keys()) {
    const size_t depth =
        key.section.empty() ? 0 : 1 + std::count(key.section.begin(), key.section.end(), '.');
    if (key.section != section)
      out += std::string(2 * (depth - 1), ' ') + std::string(key.section.substr(key.section.rfind('.') + 1)) +
             ":\n";
    section = key.section;
    out += std::string(2 * depth, ' ') + std::string(key.name) + ": " + yaml_value(key.field, config) + "\n";
  }
  return out;
}

std::string model_cache_dir() {
  const std::string cache = environment("XDG_CACHE_HOME");
  if (!cache.empty() && cache[0] == '/') return cache + "/ringmaster/models";
  return environment("HOME") + "/.cache/ringmaster/models";
}

Result<std::string> resolve_model(const std::string& model) {
  // Only a file that is not there is missing; one that cannot be looked at has a reason of its own.
  std::error_code error;
  const auto refuse = [&](const std::string& path, const std::string& missing) {
    if (!error) return Error{Code::kNotFound, missing};
    const bool denied = error == std::errc::permission_denied;
    return Error{denied ? Code::kPermissionDenied : Code::kUnavailable,
                 "the model file " + path + " cannot be looked at: " + error.message()};
  };
  if (is_path(model)) {
    if (fs::exists(model, error)) return model;
    return refuse(model, "the model file " + model + " does not exist");
  }
  const KnownModel* known = find_known_model(model);
  if (known == nullptr) {
    std::string names;
    for (const KnownModel& each : known_models())
      names += (names.empty() ? "" : ", ") + std::string(each.name);
    return Error{Code::kNotFound,
                 "model is '" + model + "'; allowed: a path to a .gguf file, or one of: " + names};
  }
  const std::string path = model_cache_dir() + "/" + std::string(known->file);
  if (fs::exists(path, error)) return path;
  return refuse(path, "the model " + model + " is not in " + model_cache_dir() + "; run `ringmaster pull " +
                          model + "`");
}

}  // namespace ringmaster
