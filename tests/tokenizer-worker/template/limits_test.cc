// Hostile templates and conversations: a clear error within bounded time, never a crash.
#include <chrono>
#include <random>

#include "tests/tokenizer-worker/template/support.h"
#include "tokenizer-worker/template/limits.h"

namespace ringmaster::tokenizer_worker::test {
namespace {

std::string repeated(std::string_view text, size_t times) {
  std::string all;
  for (size_t i = 0; i < times; ++i) all += text;
  return all;
}

void expect_error(const std::string& source, std::string_view part, const Json& context = Json::object()) {
  const std::string got = render(source, context);
  EXPECT_TRUE(got.starts_with("error: ")) << source.substr(0, 80) << " gives " << got.substr(0, 80);
  EXPECT_NE(got.find(part), std::string::npos) << source.substr(0, 80) << " gives " << got.substr(0, 200);
}

TEST(TemplateLimits, TextsAndLists) {
  expect_error("{{ 'a' * 10**9 }}", "repeating makes more than");
  expect_error("{{ [0] * 10**9 }}", "repeating makes more than");
  expect_error("{{ range(100001) }}", "Range too big");
  expect_error("{{ '%999999999d'|format(1) }}", "width");
  expect_error("{{ '{:999999999}'.format(1) }}", "Invalid format specifier");
  expect_error("{{ 'x'.center(10**9) }}", "makes a text of");
  expect_error("{{ 'x'|indent(10**12) }}", "makes a text of");
  expect_error("{{ 'ab'.replace('', 'x' * 10**7).replace('x', 'y' * 10**7) }}", "");
  expect_error("{{ [1]|batch(10**9, 0)|list }}", "");
  expect_error("{{ [1]|slice(10**9)|list }}", "allowed: at most");
  expect_error(
      "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
      "bytes");
  expect_error(
      "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}", "");
}

TEST(TemplateLimits, Steps) {
  const std::string loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
  expect_error(loops, "steps");
  expect_error("{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}{{ '' }}", "bytes");
  expect_error("{% set s = 'ab' * 10**7 %}{% for i in range(99999) %}{{ 'c' in s }}{% endfor %}", "steps");
  expect_error("{% set l = range(99999)|list %}{% for i in l %}{{ -1 in l }}{% endfor %}", "steps");
  expect_error("{% set s = 'Σ' * 10**6 %}{% for i in range(99999) %}{% set t = s|lower %}{% endfor %}", "");
}

TEST(TemplateLimits, NestingOfSource) {
  for (const char* open : {"(", "[", "{1:", "not ", "-", "x[", "f(", "1 if ", "x|default("})
    expect_error("{{ " + repeated(open, 100'000), "");
  expect_error("{{ " + repeated("(", 100'000) + repeated(")", 100'000) + " }}", "nested deeper than 200");
  expect_error(repeated("{% if 1 %}", 50'000), "nested deeper than 200");
  expect_error("{% set " + repeated("(", 100'000) + "x" + repeated(")", 100'000) + " = 1 %}",
               "nested deeper than 200");
  EXPECT_EQ(render("{{ " + repeated("(", 90) + "1" + repeated(")", 90) + " }}"), "1");
}

// Long rows nest to the left in the tree.
TEST(TemplateLimits, RowsOfOperators) {
  EXPECT_EQ(render("{{ 1" + repeated(" + 1", 50'000) + " }}"), "50001");
  EXPECT_EQ(render("{{ (1" + repeated(" ~ 1", 50'000) + ")|length }}"), "50001");
  expect_error("{{ 1" + repeated(" * 1", 50'000) + " }}", "recursion");
  expect_error("{{ 1" + repeated("|e", 50'000) + " }}", "recursion");
  expect_error("{{ x" + repeated(".x", 50'000) + " }}", "recursion");
  expect_error("{{ 1" + repeated(" and 1", 50'000) + " }}", "recursion");
  expect_error("{% filter e" + repeated("|e", 50'000) + " %}{% endfilter %}", "recursion");
}

TEST(TemplateLimits, Recursion) {
  expect_error("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion");
  expect_error("{% macro f(x) %}{{ f(x=f(x)) }}{% endmacro %}{{ f(1) }}", "recursion");
  expect_error("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "recursion");
  expect_error("{% macro f() %}{% call f() %}{{ caller }}{% endcall %}{{ caller }}{% endmacro %}{{ f() }}",
               "recursion");
  EXPECT_EQ(render("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{% endif %}.{% endmacro %}{{ f(100) }}"),
            repeated(".", 101));
}

TEST(TemplateLimits, NestedValues) {
  const std::string nest =
      "{% set ns = namespace(l=[]) %}{% for i in range(5000) %}{% set ns.l = [ns.l] %}{% endfor %}";
  expect_error(nest + "{{ ns.l }}", "too deep");
  expect_error(nest + "{{ ns.l|tojson }}", "too deep");
  expect_error(nest + "{{ ns.l == [ns.l] }}", "too deep");
  expect_error(nest + "{{ ns.l < [ns.l] }}", "");
  expect_error("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}", "too deep");
  Json deep = Json::array();
  for (int i = 0; i < 5'000; ++i) deep = Json::array({std::move(deep)});
  expect_error("{{ deep }}", "nests deeper than", {{"deep", std::move(deep)}});
}

TEST(TemplateLimits, WideIntegers) {
  expect_error("{{ 170141183460469231731687303715884105727 + 1 }}", "127 bits");
  expect_error("{{ 170141183460469231731687303715884105728 }}", "127 bits");
  EXPECT_EQ(render("{{ (-170141183460469231731687303715884105727 - 1) % -1 }}"), "0");
  expect_error("{{ (-170141183460469231731687303715884105727 - 1) // -1 }}", "127 bits");
  expect_error("{{ -(-170141183460469231731687303715884105727 - 1) }}", "127 bits");
  expect_error("{{ (-170141183460469231731687303715884105727 - 1)|abs }}", "127 bits");
  EXPECT_EQ(render("{{ -170141183460469231731687303715884105727 - 1 }}"),
            "-170141183460469231731687303715884105728");
  EXPECT_EQ(render("{{ '%x'|format(-170141183460469231731687303715884105727 - 1) }}"),
            "-80000000000000000000000000000000");
  EXPECT_EQ(render("{{ range(9223372036854775807, 9223372036854775806, -9223372036854775808)|list }}"),
            "[9223372036854775807]");
}

// Text of a conversation that looks like a template stays text (pain TOK-13).
TEST(TemplateLimits, TOK_13_ConversationIsNeverTemplate) {
  EXPECT_EQ(render("{{ x }}", {{"x", "{{ y }}{% for %}{#"}}), "{{ y }}{% for %}{#");
}

// A long conversation piled up in a namespace costs its length, not its square.
TEST(TemplateLimits, PilingUpText) {
  Json context = {{"messages", Json::array()}};
  for (int i = 0; i < 2'000; ++i)
    context["messages"].push_back({{"role", "user"}, {"content", std::string(1'000, 'x')}});
  const std::string source =
      "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t + m.content|trim + '\n' %}{% "
      "endfor %}{{ ns.t|length }}";
  EXPECT_EQ(render(source, context), "2002000");
}

// Seeded mutations of templates that use the whole language. What counts is that each ends, well.
TEST(TemplateLimits, MutatedTemplates) {
  const std::string seeds[] = {
      "{%- for m in messages if m.role != 'x' -%}{{ '<|' + m['role'] + '|>' ~ m.content|trim }}{%- if not "
      "loop.last %}, {% endif %}{% else %}-{% endfor %}",
      "{% macro f(a, b=[1, 2], c={'k': 1.5}) %}{{ a }}{{ b|join('-') }}{{ c|tojson(indent=2) }}{{ varargs "
      "}}{% endmacro %}{{ f(1, *[2, 3]) }}{{ f(b='xyz'[::-1], a=none) }}",
      "{% set ns = namespace(n=0) %}{% for x in range(9) recursive %}{% set ns.n = ns.n + x ** 2 // 3 % 5 "
      "%}{% if x is odd %}{% continue %}{% endif %}{{ loop.cycle('a', 'b') }}{% endfor %}{{ ns.n }}",
      "{{ messages|selectattr('role', 'equalto', "
      "'user')|map(attribute='content')|list|sort(reverse=true)|first|upper|replace('H', 'h', "
      "1)|title|center(30) }}",
      "{% set t | indent(3, true) %}{{ '%5.2f|%-8s|%x'|format(3.14159, 'ab', 255) }}{{ "
      "'{:>8}{0[1]}'.format([1, 2]) }}{% endset %}{{ t.split('|', 2) }}{{ t[2:-2:3] }}{% raw %}{{ }}{% "
      "endraw %}{# c #}",
      "{% call(x) f() %}{{ x }}{% endcall %}{% macro f() %}{{ caller('é🙂ß'|lower) }}{% endmacro %}{% "
      "with "
      "a = 1 %}{{ a if a > 0 and not a < 0 or 2 else 3 }}{% endwith %}{{ strftime_now('%Y') }}",
  };
  const std::string bits[] = {"{{",
                              "}}",
                              "{%",
                              "%}",
                              "{#",
                              "-",
                              "|",
                              "(",
                              ")",
                              "[",
                              "]",
                              "'",
                              "~",
                              "**",
                              " if ",
                              " for ",
                              " in ",
                              " is ",
                              "{% endfor %}",
                              "{% endif %}",
                              "loop(",
                              "messages",
                              "|tojson",
                              "|map(",
                              "*99999",
                              "10**9",
                              "range(99999)",
                              "[::-1]",
                              "\n",
                              "\xc3\xa9",
                              "\xff",
                              "none",
                              "caller()"};
  const Json context = {
      {"messages",
       {{{"role", "user"}, {"content", "Hi there"}}, {{"role", "assistant"}, {"content", nullptr}}}}};
  std::mt19937 random(7);
  int rendered = 0;
  for (int round = 0; round < 4'000; ++round) {
    std::string source = seeds[random() % std::size(seeds)];
    for (unsigned i = random() % 4; i-- > 0;) {
      const size_t at = random() % source.size();
      if (random() % 3 == 0)
        source.erase(at, 1 + random() % 6);
      else if (random() % 3 == 0)
        source.insert(at, source.substr(random() % source.size(), random() % 30));
      else
        source.insert(at, bits[random() % std::size(bits)]);
      if (source.empty()) source = "x";
    }
    if (spans(source, context)) ++rendered;
  }
  EXPECT_GT(rendered, 300);
}

TEST(TemplateLimits, LoweredForOneRender) {
  const std::string loop = "{% for i in range(1000) %}{{ i }}{% endfor %}";
  RenderOptions options = at_reference_time();
  EXPECT_TRUE(spans(loop, Json::object(), options).ok());
  options.limits.steps = 500;
  const auto stopped = spans(loop, Json::object(), options);
  ASSERT_FALSE(stopped.ok());
  EXPECT_NE(stopped.error().message.find("more than 500 steps"), std::string::npos)
      << stopped.error().message;
  options.limits = {.bytes = 1 << 16};
  const auto too_big = spans("{{ 'a' * 100000 }}", Json::object(), options);
  ASSERT_FALSE(too_big.ok());
  EXPECT_NE(too_big.error().message.find("65536 bytes"), std::string::npos) << too_big.error().message;
}

}  // namespace
}  // namespace ringmaster::tokenizer_worker::test
