// A compiled template as a tree: expressions and statements with their operators, filters and names
// resolved. Lies in the template's arena, never changes, any thread may read it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tokenizer-worker/template/value.h"

namespace ringmaster::tokenizer_worker::jinja {

// Number of a variable name of this template.
using NameId = uint32_t;

enum class ExprKind : uint8_t {
  kConst,
  kName,
  kList,
  kTuple,
  kDict,
  kAttribute,
  kItem,
  kSlice,
  kCall,
  kFilter,
  kTest,
  kNot,
  kNegative,
  kPositive,
  kAnd,
  kOr,
  kConditional,
  kCompare,
  kConcat,
  kAdd,
  kBinary,
};

enum class Op : uint8_t {
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

struct Expr {
  ExprKind kind;
  uint32_t line;
};

struct ConstExpr : Expr {
  Value value;
};
struct NameExpr : Expr {
  NameId id;
  std::string_view name;
};
// List, tuple; also what `~` and a row of `+` join.
struct SequenceExpr : Expr {
  std::span<Expr* const> items;
};
struct DictExpr : Expr {
  std::span<Expr* const> keys;
  std::span<Expr* const> values;
};
// The methods that the name may mean, looked up once.
struct MethodsOfName {
  const Builtin* of_string = nullptr;
  const Builtin* of_list = nullptr;
  const Builtin* of_dict = nullptr;
};
struct AttributeExpr : Expr {
  Expr* object;
  Value name;
  MethodsOfName methods;
};
struct ItemExpr : Expr {
  Expr* object;
  Expr* index;
};
struct SliceExpr : Expr {
  Expr* object;
  Expr* start;  // each may be null
  Expr* stop;
  Expr* step;
};
struct NamedExpr {
  std::string_view name;
  Expr* value;
};
struct CallArguments {
  std::span<Expr* const> positional;
  std::span<const NamedExpr> named;
  Expr* star = nullptr;
  Expr* double_star = nullptr;

  bool empty() const {
    return positional.empty() && named.empty() && star == nullptr && double_star == nullptr;
  }
};
struct CallExpr : Expr {
  Expr* callee;
  CallArguments arguments;
};
// Filter or test. In a filter block the input is null: the text of the block.
struct ApplyExpr : Expr {
  Expr* input;
  const Builtin* builtin;
  CallArguments arguments;
};
struct UnaryExpr : Expr {
  Expr* operand;
};
struct BinaryExpr : Expr {
  Op op;
  Expr* left;
  Expr* right;
};
struct ConditionalExpr : Expr {
  Expr* test;
  Expr* then;
  Expr* otherwise;  // may be null
};
struct Comparison {
  Op op;
  Expr* right;
};
struct CompareExpr : Expr {
  Expr* first;
  std::span<const Comparison> rest;
};

enum class StmtKind : uint8_t {
  kText,
  kPrint,
  kIf,
  kFor,
  kSet,
  kSetBlock,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kWith,
  kScope,
  kBreak,
  kContinue,
};

struct Stmt {
  StmtKind kind;
  uint32_t line;
};
using Body = std::span<Stmt* const>;

struct TextStmt : Stmt {
  std::string_view text;
};
struct PrintStmt : Stmt {
  std::span<Expr* const> items;
};
struct Branch {
  Expr* test;  // null: else
  Body body;
};
struct IfStmt : Stmt {
  std::span<const Branch> branches;
};
// What is assigned to: a name, an attribute of a namespace, or a tuple of these.
struct Target {
  enum Kind : uint8_t { kName, kNamespace, kTuple };
  Kind kind;
  NameId id = 0;
  std::string_view name;
  std::string_view attribute;
  std::span<const Target> items;
};
struct ForStmt : Stmt {
  Target target;
  Expr* iterable;
  Expr* filter;  // may be null
  bool recursive;
  Body body;
  Body otherwise;
};
struct SetStmt : Stmt {
  Target target;
  Expr* value;
};
struct SetBlockStmt : Stmt {
  Target target;
  Expr* filter;  // a chain of ApplyExpr, or null
  Body body;
};
struct Parameter {
  NameId id;
  std::string_view name;
  Expr* fallback;  // may be null
};
struct MacroStmt : Stmt {
  NameId id;  // unused for the body of a call block
  std::string_view name;
  std::span<const Parameter> parameters;
  Body body;
  bool uses_varargs;
  bool uses_kwargs;
  bool uses_caller;
};
struct CallBlockStmt : Stmt {
  CallExpr* call;
  MacroStmt* caller;
};
struct FilterBlockStmt : Stmt {
  Expr* filter;
  Body body;
};
struct WithStmt : Stmt {
  std::span<const Target> targets;
  std::span<Expr* const> values;
  Body body;
};
// A block or {% generation %}: names set inside stay inside.
struct ScopeStmt : Stmt {
  Body body;
  bool sees_outside;  // the names of the loop or macro around it; else only the template's own
};

}  // namespace ringmaster::tokenizer_worker::jinja
