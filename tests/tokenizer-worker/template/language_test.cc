// The language by worked example; every expectation is what Jinja 3.1 with transformers' settings gives.
#include "tests/tokenizer-worker/template/support.h"
#include "tokenizer-worker/template/builtins.h"

namespace ringmaster::tokenizer_worker::test {
namespace {

struct Example {
  const char* source;
  const char* text;
};

const Json& context() {
  static const Json json = Json::parse(R"({
    "word": "Straße", "n": 7, "half": 2.5, "big": 18446744073709551615, "list": [3, 1, 2], "empty": [], "nothing": null,
    "dict": {"b": 1, "a": [true, null], "items": "mine"},
    "people": [{"name": "Ann", "age": 30}, {"name": "bob", "age": 25}, {"name": "Cy"}]
  })");
  return json;
}

void check(std::initializer_list<Example> examples) {
  for (const Example& example : examples)
    EXPECT_EQ(render(example.source, context()), example.text) << example.source;
}

// The example must fail, with this in its message.
void check_errors(std::initializer_list<Example> examples) {
  for (const Example& example : examples) {
    const std::string got = render(example.source, context());
    EXPECT_TRUE(got.starts_with("error: ") && got.find(example.text) != std::string::npos)
        << example.source << "\n  " << got;
  }
}

TEST(TemplateLanguage, PrintsValuesAsPythonDoes) {
  check({{"{{ word }} {{ n }} {{ half }} {{ nothing }} {{ big }} {{ unknown }}|",
          "Straße 7 2.5 None 18446744073709551615 |"},
         {"{{ list }} {{ dict }}", "[3, 1, 2] {'b': 1, 'a': [True, None], 'items': 'mine'}"},
         {"{{ (1,) }}{{ () }}{{ {} }}{{ range(2, 9, 3) }}", "(1,)(){}range(2, 9, 3)"},
         {"{{ 1e15 }} {{ 1e16 }} {{ 1e-5 }} {{ 0.1 + 0.2 }} {{ -0.0 }}",
          "1000000000000000.0 1e+16 1e-05 0.30000000000000004 -0.0"},
         {"{{ ['it\\'s', '\"', '\\'\"', '\\n\\x00\\u200b'] }}",
          "[\"it's\", '\"', '\\'\"', '\\n\\x00\\u200b']"}});
}

TEST(TemplateLanguage, Arithmetic) {
  check({{"{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }}",
          "3 -4 2 3.5 1024 0.5"},
         {"{{ 2 ** 64 }} {{ -2 ** 2 }} {{ 2 ** 3 ** 2 }} {{ 2 + 3 * 4 }}", "18446744073709551616 4 64 14"},
         {"{{ big + 1 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}", "18446744073709551616 3.0 0.5"},
         {"{{ 'ab' * 2 ~ 1 + 'x' }} {{ [0] * 2 + [1] }}", "abab1x [0, 0, 1]"},
         {"{{ 'a' ~ none ~ true ~ 1.0 }}", "aNoneTrue1.0"}});
  check_errors({{"{{ 1 / 0 }}", "division by zero"},
                {"{{ 1 + 'a' }}", "unsupported operand type(s) for +: 'int' and 'str'"},
                {"{{ 'a' + 1 }}", "can only concatenate str (not \"int\") to str"},
                {"{{ 2 ** 128 }}", "more than 127 bits"},
                {"{{ unknown + 1 }}", "'unknown' is undefined"}});
}

TEST(TemplateLanguage, Comparisons) {
  check({{"{{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 1 == 1.0 == true }} {{ none == false }}",
          "True False True False"},
         {"{{ 'tr' in word }} {{ 1 in list }} {{ 'b' in dict }} {{ 9 not in list }}", "True True True True"},
         {"{{ [1, 2] < [1, 3] }} {{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} }} {{ 9007199254740993 == "
          "9007199254740992.0 }}",
          "True True False"},
         {"{{ not n == 7 }} {{ n is not string }} {{ 'x' if n > 9 else 'y' if n > 5 else 'z' }}",
          "False True y"}});
  check_errors({{"{{ 1 < 'a' }}", "'<' not supported between instances of 'int' and 'str'"},
                {"{{ 1 in 2 }}", "'int' is not iterable"}});
}

TEST(TemplateLanguage, SubscriptsAndSlicesCountCodePoints) {
  check({{"{{ word[4] }}{{ word[-1] }}{{ word[::-1] }}{{ word[1:5:2] }}", "ßeeßartSta"},
         {"{{ word|length }} {{ list[5] }}|{{ list[-1] }}{{ list[1:] }}{{ list[::-2] }}", "6 |2[1, 2][2, 3]"},
         {"{{ dict.b }}{{ dict['a'][0] }}{{ dict['items'] }}{{ people.0.name }}", "1TruemineAnn"},
         {"{{ dict.items()|list }}", "[('b', 1), ('a', [True, None]), ('items', 'mine')]"}});
  check_errors({{"{{ unknown.x }}", "'unknown' is undefined"},
                {"{{ dict.x.y }}", "'dict object' has no attribute 'x'"},
                {"{{ list[9].x }}", "list object has no element 9"}});
}

TEST(TemplateLanguage, Loops) {
  check({{"{% for x in list %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ x }};{% endfor %}",
          "1TrueFalse3;2FalseFalse1;3FalseTrue2;"},
         {"{% for x in list if x > 1 %}{{ loop.length }}{{ x }}{{ loop.nextitem }} {% endfor %}", "232 22 "},
         {"{% for x in empty %}x{% else %}none{% endfor %}", "none"},
         {"{% for k, v in dict.items() %}{{ k }}{% if loop.index == 2 %}{% break %}{% endif %},{% endfor %}",
          "b,a"},
         {"{% for x in [1, [2, [3]]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{% "
          "endif %}{% endfor %}",
          "1(2(3))"},
         {"{% for x in list %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }} {% endfor %}",
          "aTrue bTrue aTrue "},
         {"{% set x = 0 %}{% for i in list %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}", "3120"},
         {"{% set ns = namespace(sum=0) %}{% for i in list %}{% set ns.sum = ns.sum + i %}{% endfor %}{{ "
          "ns.sum }}",
          "6"}});
}

TEST(TemplateLanguage, MacrosAndBlocks) {
  check({{"{% macro m(a, b='d') %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }}{{ m(1, 2, "
          "3, c=4) }}",
          "1d(){}12(3,){'c': 4}"},
         {"{% macro box() %}<{{ caller('x') }}>{% endmacro %}{% call(v) box() %}{{ v }}{{ n }}{% endcall %}",
          "<x7>"},
         {"{% set v = 1 %}{% macro m() %}{{ v }}{% endmacro %}{% set v = 2 %}{{ m() }}", "2"},
         {"{% set t | upper %}a{{ n }}{% endset %}{{ t }}{% filter replace('a', 'b') %}aa{% endfilter %}",
          "A7bb"},
         {"{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}", "12False"},
         {"{% generation %}{{ word }}{% endgeneration %}{% block x %}!{% endblock %}", "Straße!"}});
  check_errors({{"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "takes not more than 1 argument(s)"},
                {"{% macro m(a) %}{% endmacro %}{{ m(b=2) }}", "no keyword argument 'b'"}});
}

TEST(TemplateLanguage, WhitespaceControl) {
  check({{"a\n  {% if n %}  \n  b\n  {% endif %}\nc\n", "a\n  \n  b\nc"},
         {"a {%- if n %} b {%- endif %} c", "a b c"},
         {"x\n  {# note #}\ny {#- note -#} z\n\n", "x\nyz\n"},
         {"{%+ if n +%}\n a\n  {%+ endif %}", "\n a\n  "},
         {"\r\na\r{% raw %}{{ x }}{% endraw %}", "\na\n{{ x }}"}});
}

TEST(TemplateLanguage, FiltersAndTests) {
  check({{"{{ people|map(attribute='name')|join(', ') }}", "Ann, bob, Cy"},
         {"{{ people|selectattr('age', 'defined')|rejectattr('age', 'gt', 26)|map(attribute='name')|list }}",
          "['bob']"},
         {"{{ people|sort(attribute='name')|map(attribute='name')|list }} {{ list|sort(reverse=true) }}",
          "['Ann', 'bob', 'Cy'] [3, 2, 1]"},
         {"{{ list|max }}{{ list|sum }}{{ list|first }}{{ list|last }}{{ unknown|default('d') }}{{ "
          "''|default('e', true) }}",
          "3632de"},
         {"{{ word|upper }} {{ 'ΟΔΟΣ'|lower }} {{ 'hello wORLD'|title }} {{ ' x '|trim }}|",
          "STRASSE οδος Hello World x|"},
         {"{{ '%s is %05.2f'|format('pi', 3.14159) }} {{ '{:>4}|{0}'.format('a') if false else "
          "'{:>4}|'.format('a') }}",
          "pi is 03.14    a|"},
         {"{{ 2.5|round }} {{ 3.14159|round(2) }} {{ '3.9'|int }} {{ 'x'|float(1.5) }}", "2.0 3.14 3 1.5"},
         {"{{ n is odd }} {{ n is divisibleby 7 }} {{ dict is mapping }} {{ nothing is none }} {{ list is "
          "string }}",
          "True True True True False"}});
}

TEST(TemplateLanguage, JsonAsTransformersWritesIt) {
  check({{"{{ dict|tojson }}", R"({"b": 1, "a": [true, null], "items": "mine"})"},
         {"{{ dict|tojson(indent=2) }}",
          "{\n  \"b\": 1,\n  \"a\": [\n    true,\n    null\n  ],\n  \"items\": \"mine\"\n}"},
         {"{{ '<&>\\'é\"\\n' | tojson }} {{ 'é🙂'|tojson(ensure_ascii=true) }}",
          R"("<&>'é\"\n" "\u00e9\ud83d\ude42")"},
         {"{{ {'b': 1e21, 'a': 1.0}|tojson(sort_keys=true, separators=(',', ':')) }}",
          R"({"a":1.0,"b":1e+21})"}});
  check_errors({{"{{ unknown|tojson }}", "Undefined is not JSON serializable"},
                {"{{ list|map('string')|tojson }}", "generator is not JSON serializable"}});
}

TEST(TemplateLanguage, GeneratorsAreReadOnce) {
  check({{"{% set g = list|map('string') %}{{ g|first }}{{ g|list }}{{ g|list }}", "3['1', '2'][]"}});
  check_errors({{"{{ list|map('string')|length }}", "has no len()"}});
}

TEST(TemplateLanguage, SandboxRefusesWhatChangesOrEscapes) {
  check({{"{{ word.__class__ }}|", "|"}});
  check_errors({{"{{ word.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe"},
                {"{{ list.append(1) }}", "access to attribute 'append' of 'list' object is unsafe"},
                {"{{ dict.update({}) }}", "access to attribute 'update' of 'dict' object is unsafe"},
                {"{% set word.x = 1 %}", "non-namespace"}});
}

TEST(TemplateLanguage, RefusesByNameAtCompileTime) {
  const auto error = [](std::string_view source) {
    const auto result = ChatTemplate::compile(source, "", "");
    return result ? std::string("compiles")
                  : std::string(name(result.error().code)) + ": " + result.error().message;
  };
  EXPECT_EQ(error("a\n{{ x|frobnicate }}"),
            "unsupported: no filter named 'frobnicate' (line 2 of the chat template)");
  EXPECT_EQ(error("{{ x is frobnicated }}"),
            "unsupported: no test named 'frobnicated' (line 1 of the chat template)");
  EXPECT_EQ(error("{% include 'x' %}"),
            "unsupported: tag 'include' is not supported in chat templates (line 1 of the chat template)");
  EXPECT_EQ(error("{% do x %}"), "unsupported: unknown tag 'do' (line 1 of the chat template)");
  EXPECT_EQ(error("{% if x %}"),
            "malformed: unexpected end of template; expected 'elif' or 'else' or 'endif' (line 1 of the chat "
            "template)");
  EXPECT_EQ(error("{{ (1 }}"), "malformed: unexpected '}', expected ')' (line 1 of the chat template)");
  EXPECT_EQ(error("{% break %}"), "malformed: 'break' outside of a loop (line 1 of the chat template)");
  EXPECT_EQ(error("{{ 'a\xff' }}"), "invalid_utf8: the chat template is not UTF-8");
}

TEST(TemplateLanguage, ErrorsOfTheTemplateKeepItsWords) {
  const auto result = spans("{{ raise_exception('Only ' ~ n ~ ' roles') }}", context());
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, Code::kInvalidArgument);
  EXPECT_EQ(result.error().message, "Only 7 roles");
}

TEST(TemplateLanguage, TimeIsTheCallers) {
  EXPECT_EQ(render("{{ strftime_now('%d %b %Y, %-I %p, %j') }}"), "05 Mar 2026, 2 PM, 064");
}

TEST(TemplateLanguage, TablesAreSorted) {
  for (const auto table : {jinja::text_filters(), jinja::sequence_filters(), jinja::selecting_filters(),
                           jinja::number_filters(), jinja::tests(), jinja::string_methods(),
                           jinja::string_tests(), jinja::list_methods(), jinja::dict_methods()})
    for (const jinja::Builtin& builtin : table)
      EXPECT_EQ(jinja::find_in(table, builtin.name), &builtin) << builtin.name;
}

TEST(TemplateContinuation, CutsBehindTheLastMessage) {
  const char* source =
      "{% for m in messages %}<{{ m.role }}>{{ m.content[0].text if m.content is iterable and m.content is "
      "not string else m.content "
      "}}</>{% endfor %}end";
  RenderOptions options = at_reference_time();
  options.continue_final_message = true;
  const auto text = [&](const char* content) {
    Json json = {{"messages",
                  {{{"role", "user"}, {"content", "One"}},
                   {{"role", "assistant"}, {"content", Json::parse(content)}}}}};
    const auto result = spans(source, json, options);
    return result ? joined(*result) : result.error().message;
  };
  EXPECT_EQ(text(R"("One, two")"), "<user>One</><assistant>One, two");
  EXPECT_EQ(text(R"(" One, ")"), "<user>One</><assistant> One, ");
  EXPECT_EQ(text(R"([{"type": "text", "text": "Two"}])"), "<user>One</><assistant>Two");  // pain TPL-05
  EXPECT_EQ(text("7"), "continue_final_message needs a last message with text content");
}

}  // namespace
}  // namespace ringmaster::tokenizer_worker::test
