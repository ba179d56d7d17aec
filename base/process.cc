#include "base/process.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <charconv>
#include <string_view>

namespace ringmaster {
namespace {

template <typename T>
bool to_number(std::string_view text, T& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

Error usage(const std::string& what, const char* binary) {
  return {
      Code::kInvalidArgument,
      what + "; usage: " + binary + " --config FILE --name NAME [--ready-fd N] (started by `ringmaster up`)"};
}

}  // namespace

Result<ProcessArguments> parse_process_arguments(int argc, const char* const* argv) {
  ProcessArguments arguments;
  const char* binary = argc > 0 ? argv[0] : "PROCESS";
  for (int i = 1; i < argc; i += 2) {
    const std::string_view option = argv[i];
    if (option != "--config" && option != "--name" && option != "--ready-fd")
      return usage("unknown argument '" + std::string(option) + "'", binary);
    if (i + 1 == argc) return usage("argument " + std::string(option) + " has no value", binary);
    const std::string_view value = argv[i + 1];
    if (option == "--config") arguments.config_path = value;
    if (option == "--name") arguments.name = value;
    if (option == "--ready-fd" && !(to_number(value, arguments.ready_fd) && arguments.ready_fd >= 0))
      return usage("--ready-fd is '" + std::string(value) + "'; allowed: a descriptor", binary);
  }
  if (arguments.config_path.empty() || arguments.name.empty())
    return usage("--config or --name is missing", binary);
  const size_t dot = arguments.name.rfind('.');
  if (dot != std::string::npos &&
      !to_number(std::string_view(arguments.name).substr(dot + 1), arguments.index))
    return usage("--name is '" + arguments.name + "'; allowed: KIND or KIND.NUMBER", binary);
  // Never inherited by a process that this one starts; a descriptor that is not open is as good as
  // none.
  if (arguments.ready_fd >= 0) fcntl(arguments.ready_fd, F_SETFD, FD_CLOEXEC);
  return arguments;
}

std::string_view exit_name(int exit_code) {
  switch (exit_code) {
    case kExitDeviceFailed:
      return "its device failed";
    case kExitDeviceMemory:
      return "its device ran out of memory";
    case kExitDeviceHung:
      return "its device hung";
    default:
      return "";
  }
}

uint64_t raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlimit raised{limit.rlim_max, limit.rlim_max};
  return setrlimit(RLIMIT_NOFILE, &raised) == 0 ? raised.rlim_cur : limit.rlim_cur;
}

}  // namespace ringmaster
