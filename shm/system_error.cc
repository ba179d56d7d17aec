#include "shm/system_error.h"

#include <cerrno>
#include <system_error>

namespace ringmaster::shm {
namespace {

Code code_of(int error_number) {
  switch (error_number) {
    case ENOENT:
      return Code::kNotFound;
    case EACCES:
    case EPERM:
    case EROFS:
      return Code::kPermissionDenied;
    case EEXIST:
    case EADDRINUSE:
      return Code::kAlreadyExists;
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOSPC:
    case EDQUOT:
    case EAGAIN:  // of fork; where it means "not yet" it is no error
    case ENOBUFS:
      return Code::kResourceExhausted;
    case ETIMEDOUT:
      return Code::kDeadlineExceeded;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
      return Code::kUnavailable;
    case ENOSYS:
      return Code::kUnsupported;
    default:
      return Code::kInternal;
  }
}

// What to do about a limit that its own words do not name.
const char* remedy(int error_number) {
  switch (error_number) {
    case EMFILE:
      return "; raise the limit of this process (ulimit -n, the service's LimitNOFILE)";
    case ENFILE:
      return "; raise the limit of the whole system (sysctl fs.file-max)";
    default:
      return "";
  }
}

}  // namespace

Error system_error(const std::string& what, int error_number) {
  return {code_of(error_number),
          what + ": " + std::system_category().message(error_number) + remedy(error_number)};
}

}  // namespace ringmaster::shm
