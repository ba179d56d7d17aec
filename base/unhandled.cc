#include "base/unhandled.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <new>
#include <stdexcept>
#include <string_view>
#include <system_error>

namespace ringmaster {
namespace {

// Neither allocates nor takes a lock: this thread may hold any.
void say(std::initializer_list<std::string_view> parts) {
  constexpr size_t kMaxParts = 4;
  iovec pieces[kMaxParts];
  int count = 0;
  for (const std::string_view part : parts) pieces[count++] = {const_cast<char*>(part.data()), part.size()};
  [[maybe_unused]] const ssize_t written = writev(STDERR_FILENO, pieces, count);
}

[[noreturn]] void end_process() {
  const std::exception_ptr thrown = std::current_exception();
  if (thrown == nullptr) {
    say({"this process ends: std::terminate was called, which is a bug\n"});
    std::abort();
  }
  try {
    std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    say(
        {"out of memory: this process ends rather than go on half-done; give it more (memory limit of the "
         "service or container, ulimit -v) or let it hold less (router.max_live_requests, "
         "gpu-worker.kv_memory, gpu-worker.max_waiting)\n"});
  } catch (const std::system_error& error) {
    const bool thread = error.code() == std::errc::resource_unavailable_try_again;
    say({"the system refuses what this process needs: ", error.what(),
         thread
             ? "; no further thread could be started: raise the limit (ulimit -u, the service's TasksMax)\n"
             : "\n"});
  } catch (const std::logic_error& error) {
    say({"this process ends because of a bug: ", error.what(), "\n"});
    std::abort();
  } catch (const std::exception& error) {
    say({"this process ends, as something failed that it cannot do without: ", error.what(), "\n"});
  } catch (...) {
    say({"this process ends because of a bug: an exception of an unknown kind\n"});
    std::abort();
  }
  _exit(EXIT_FAILURE);
}

}  // namespace

void end_process_on_unhandled_exceptions() {
  std::set_terminate(end_process);
}

}  // namespace ringmaster
