#include "tokenizer-worker/template/strftime.h"

#include <cctype>
#include <cstdio>

namespace ringmaster::tokenizer_worker::jinja {
namespace {

constexpr const char* kDays[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                 "Thursday", "Friday", "Saturday"};
constexpr const char* kMonths[] = {"January", "February", "March",     "April",   "May",      "June",
                                   "July",    "August",   "September", "October", "November", "December"};

// `width` digits, or with the '-' flag as few as it takes.
std::string number(int value, int width, bool short_form, char fill = '0') {
  std::string digits = std::to_string(value);
  while (!short_form && static_cast<int>(digits.size()) < width) digits.insert(digits.begin(), fill);
  return digits;
}

std::string_view composed(char directive) {
  switch (directive) {
    case 'c':
      return "%a %b %e %H:%M:%S %Y";
    case 'D':
    case 'x':
      return "%m/%d/%y";
    case 'F':
      return "%Y-%m-%d";
    case 'R':
      return "%H:%M";
    case 'r':
      return "%I:%M:%S %p";
    case 'T':
    case 'X':
      return "%H:%M:%S";
    default:
      return {};
  }
}

bool directive(char c, bool short_form, const std::tm& t, std::string& text) {
  const int day = ((t.tm_wday % 7) + 7) % 7, month = ((t.tm_mon % 12) + 12) % 12;
  const int hour12 = t.tm_hour % 12 == 0 ? 12 : t.tm_hour % 12;
  switch (c) {
    case 'a':
      return text.append(kDays[day], 3), true;
    case 'A':
      return text += kDays[day], true;
    case 'b':
    case 'h':
      return text.append(kMonths[month], 3), true;
    case 'B':
      return text += kMonths[month], true;
    case 'd':
      return text += number(t.tm_mday, 2, short_form), true;
    case 'e':
      return text += number(t.tm_mday, 2, short_form, ' '), true;
    case 'f':
      return text += "000000", true;
    case 'H':
      return text += number(t.tm_hour, 2, short_form), true;
    case 'I':
      return text += number(hour12, 2, short_form), true;
    case 'j':
      return text += number(t.tm_yday + 1, 3, short_form), true;
    case 'm':
      return text += number(t.tm_mon + 1, 2, short_form), true;
    case 'M':
      return text += number(t.tm_min, 2, short_form), true;
    case 'p':
      return text += t.tm_hour < 12 ? "AM" : "PM", true;
    case 'S':
      return text += number(t.tm_sec, 2, short_form), true;
    case 'u':
      return text += number(day == 0 ? 7 : day, 1, true), true;
    case 'w':
      return text += number(day, 1, true), true;
    case 'U':
      return text += number((t.tm_yday + 7 - day) / 7, 2, short_form), true;
    case 'W':
      return text += number((t.tm_yday + 7 - (day + 6) % 7) / 7, 2, short_form), true;
    case 'y':
      return text += number((t.tm_year + 1900) % 100, 2, short_form), true;
    case 'Y':
      return text += std::to_string(t.tm_year + 1900), true;
    case 'z':  // a naive datetime has neither
    case 'Z':
      return true;
    case 'n':
      return text += '\n', true;
    case 't':
      return text += '\t', true;
    case '%':
      return text += '%', true;
    default:
      return false;
  }
}

}  // namespace

bool format_time(std::string_view format, const std::tm& time, std::string& text, std::string& why) {
  for (size_t at = 0; at < format.size(); ++at) {
    if (format[at] != '%') {
      text.push_back(format[at]);
      continue;
    }
    const bool short_form = at + 1 < format.size() && format[at + 1] == '-';
    at += short_form ? 2 : 1;
    const char c = at < format.size() ? format[at] : '\0';
    if (const std::string_view parts = composed(c); !parts.empty()) {
      if (!format_time(parts, time, text, why)) return false;
    } else if (!directive(c, short_form, time, text)) {
      why = c == '\0' ? "the format ends in '%'" : "directive %" + std::string(1, c) + " is not supported";
      return false;
    }
  }
  return true;
}

}  // namespace ringmaster::tokenizer_worker::jinja
