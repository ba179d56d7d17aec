#include "launcher/merged_output.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace ringmaster::launcher {
namespace {

// Distinct on dark and light ground; red is left to errors.
constexpr std::array<const char*, 6> kColours = {"\x1B[36m", "\x1B[32m", "\x1B[33m",
                                                 "\x1B[35m", "\x1B[34m", "\x1B[96m"};
constexpr const char* kReset = "\x1B[0m";

}  // namespace

MergedOutput::MergedOutput(int fd, bool colour, const std::vector<std::string>& names)
    : fd_(fd), colour_(colour), names_(names) {
  for (const std::string& name : names_) width_ = std::max(width_, name.size());
}

std::string MergedOutput::prefix(std::string_view name) const {
  const auto index = static_cast<size_t>(std::find(names_.begin(), names_.end(), name) - names_.begin());
  std::string out(name);
  out.resize(std::max(width_, out.size()), ' ');
  out += " | ";
  return colour_ ? kColours[index % kColours.size()] + out + kReset : out;
}

void MergedOutput::line(std::string_view name, std::string_view text) {
  std::string out = prefix(name);
  for (const char c : text)
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? (c == '\t' ? ' ' : '?') : c;
  out += '\n';
  if (dropped_ > 0 && !put("(" + std::to_string(dropped_) + " log lines dropped: stderr was not read)\n")) {
    ++dropped_;
    return;
  }
  dropped_ = 0;
  if (!put(out)) ++dropped_;
}

bool MergedOutput::put(std::string_view text) {
  // A pipe that polls writable has room for PIPE_BUF bytes; longer lines go in pieces, each asked for.
  constexpr size_t kPiece = 4096;
  while (!text.empty()) {
    pollfd entry{fd_, POLLOUT, 0};
    if (poll(&entry, 1, 0) != 1 || (entry.revents & POLLOUT) == 0) return false;
    const ssize_t written = write(fd_, text.data(), std::min(text.size(), kPiece));
    if (written <= 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace ringmaster::launcher
