// Pages that must follow the schemas: docs/request.md (the life of a request), docs/protocol.md,
// schemas/README.md. A message, record, field or code that they do not name, a file that does not exist, or a
// file that does not know the message it is said to send or receive, fails here.
// g++ 12 with -fsanitize=address warns about the inside of <regex> (GCC bug 105562).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace ringmaster {
namespace {

const std::string kRoot = RINGMASTER_SOURCE_DIR;

std::string read(const std::string& path) {
  std::ifstream file(kRoot + "/" + path);
  EXPECT_TRUE(file.good()) << path << " cannot be read";
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> all_matches(const std::string& text, const std::string& pattern) {
  std::vector<std::string> out;
  const std::regex regex(pattern);
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it)
    out.push_back((*it)[1]);
  return out;
}

// The members of `union NAME { A, B }`.
std::set<std::string> union_members(const std::string& file, const std::string& name) {
  const auto bodies = all_matches(read(file), "union " + name + " \\{([^}]*)\\}");
  EXPECT_EQ(bodies.size(), 1u) << name << " in " << file;
  const auto members = bodies.empty() ? std::vector<std::string>() : all_matches(bodies[0], "(\\w+)");
  return {members.begin(), members.end()};
}

std::set<std::string> messages() {
  std::set<std::string> out = union_members("schemas/router.fbs", "RouterBody");
  out.merge(union_members("schemas/client.fbs", "ClientBody"));
  out.merge(union_members("schemas/tokenizer_worker.fbs", "TokenizerWorkerBody"));
  out.merge(union_members("schemas/gpu_worker.fbs", "GpuWorkerBody"));
  EXPECT_EQ(out.size(), 32u) << "a new message? name it in the three pages, then here";
  return out;
}

std::set<std::string> records() {
  const auto list = all_matches(read("shm/records.h"), "enum class RecordType[^{]*\\{([^}]*)\\}");
  EXPECT_EQ(list.size(), 1u);
  const auto names = list.empty() ? std::vector<std::string>() : all_matches(list[0], "\\bk([A-Z]\\w*)");
  return {names.begin(), names.end()};
}

struct Hop {
  int number;
  std::string sender, message, receiver;
};

// Rows `| 8 | `file` | `Message` | `file` | text |`.
std::vector<Hop> hops() {
  std::vector<Hop> out;
  std::stringstream lines(read("docs/request.md"));
  const std::regex row(R"(\| (\d+) \| `?([^|`]*)`? \| `?([^|` ]*)`? ?\| `?([^|` ]*)`? ?\|.*)");
  for (std::string line; std::getline(lines, line);) {
    std::smatch m;
    if (std::regex_match(line, m, row)) out.push_back({std::stoi(m[1]), m[2], m[3], m[4]});
  }
  return out;
}

TEST(RequestPage, HopsAreNumberedInOrder) {
  const auto all = hops();
  ASSERT_GT(all.size(), 30u);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].number, static_cast<int>(i + 1));
}

TEST(RequestPage, EveryMessageAndRecordHasAHop) {
  std::set<std::string> named;
  for (const Hop& hop : hops()) named.insert(hop.message);
  for (const std::string& message : messages()) EXPECT_TRUE(named.count(message)) << message;
  for (const std::string& record : records()) EXPECT_TRUE(named.count(record)) << record;
  std::set<std::string> known = messages();
  known.merge(records());
  for (const std::string& name : named)
    EXPECT_TRUE(name.empty() || known.count(name)) << name << " does not exist";
}

TEST(RequestPage, SendersAndReceiversKnowTheirMessages) {
  std::set<std::string> unsent;
  for (const Hop& hop : hops()) {
    if (hop.message.empty()) continue;
    if (hop.sender == "nobody yet")
      unsent.insert(hop.message);
    else
      EXPECT_NE(read(hop.sender).find(hop.message), std::string::npos)
          << hop.sender << " does not send " << hop.message;
    EXPECT_NE(read(hop.receiver).find(hop.message), std::string::npos)
        << hop.receiver << " does not take " << hop.message;
  }
  EXPECT_EQ(unsent, (std::set<std::string>{"Drain", "DrainGpuWorker", "Rebind"}));
}

TEST(Pages, NameOnlyFilesThatExist) {
  for (const char* page : {"docs/request.md", "docs/protocol.md", "docs/audit.md", "schemas/README.md", "router/README.md"}) {
    const auto paths =
        all_matches(read(page), R"(`([a-z][A-Za-z0-9_/-]*/[A-Za-z0-9_.-]*\.(?:h|cc|fbs|md|py))`)");
    for (const std::string& path : paths)
      EXPECT_TRUE(std::filesystem::exists(kRoot + "/" + path)) << page << " names " << path;
  }
  EXPECT_GT(all_matches(read("docs/request.md"), R"(`([a-z][a-z0-9_/-]*\.(?:h|cc))`)").size(), 80u);
}

TEST(SchemasPage, NamesEveryMessage) {
  const std::string page = read("schemas/README.md");
  for (const std::string& message : messages())
    EXPECT_NE(page.find("| `" + message + "` |"), std::string::npos) << message;
}

TEST(ProtocolPage, NamesEveryClientMessageFieldAndCode) {
  const std::string page = read("docs/protocol.md");
  std::set<std::string> needed = union_members("schemas/client.fbs", "ClientBody");
  for (const char* sent : {"Generate", "Acks", "Cancel", "Ping", "StatusQuery", "Tokenize", "AuditQuery"})
    needed.insert(sent);
  needed.merge(union_members("schemas/router.fbs", "Prompt"));
  const auto generate = all_matches(read("schemas/router.fbs"), "table Generate \\{([^}]*)\\}");
  ASSERT_EQ(generate.size(), 1u);
  for (const std::string& field : all_matches(generate[0], "\n +(\\w+):")) needed.insert(field);
  const auto codes = all_matches(read("schemas/common.fbs"), "enum Code : ubyte \\{([^}]*)\\}");
  const auto reasons = all_matches(read("schemas/common.fbs"), "enum FinishReason : ubyte \\{([^}]*)\\}");
  ASSERT_EQ(codes.size() + reasons.size(), 2u);
  for (const std::string& list : {codes[0], reasons[0]})
    for (const std::string& code : all_matches(list, "([a-z_0-9]+)"))
      if (code != "0") needed.insert(code);
  EXPECT_GT(needed.size(), 50u);
  for (const std::string& name : needed) EXPECT_NE(page.find("`" + name + "`"), std::string::npos) << name;
}

}  // namespace
}  // namespace ringmaster
