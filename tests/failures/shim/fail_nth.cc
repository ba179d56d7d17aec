// Loaded into a process under test with LD_PRELOAD: its n-th call of one family fails, as the kernel or the
// allocator would let it fail. Which, it reads from the environment (nothing of the product does):
//   FAIL_PROGRAM  the program's file name; other programs are left alone
//   FAIL_FAMILY   memory, files, descriptors, messages, threads
//   FAIL_AT       n, from 1; 0: none fails
//   FAIL_NOTE     a file: made when the call fails (its name and a backtrace). While it exists nothing fails:
//                 one failure a run, however many processes share this environment.
//   FAIL_COUNT    a file that is given the number of calls of the family when the process ends; may be empty
//
// Counted from main() on; not counted: what ZeroMQ does, in its own threads and below its functions. It
// aborts on most failures by design (zmq_assert, alloc_assert), which no caller can prevent.
// Linux on a 64-bit machine: every wrapped function takes at most six integers or pointers.
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>

extern "C" void* __libc_malloc(size_t);
extern "C" void* __libc_calloc(size_t, size_t);
extern "C" void* __libc_realloc(void*, size_t);
extern "C" void* __libc_memalign(size_t, size_t);

namespace {

enum Family { kMemory, kFiles, kDescriptors, kMessages, kThreads, kFamilies };
constexpr const char* kFamilyNames[kFamilies] = {"memory", "files", "descriptors", "messages", "threads"};

Family family = kFamilies;
long fail_at = 0;
const char* note = nullptr;
const char* count_file = nullptr;
std::atomic<bool> counting{false};
std::atomic<long> calls{0};
__attribute__((tls_model("initial-exec"))) thread_local int below_zmq = 0;  // or inside this file

struct Below {
  Below() { ++below_zmq; }
  ~Below() { --below_zmq; }
};

// A file made by this very call; the note of an earlier failure means: no more.
bool write_note(const char* function, long n) {
  const long fd = syscall(SYS_openat, AT_FDCWD, note, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  char line[128];
  const int length =
      snprintf(line, sizeof line, "%s, call %ld of the family %s\n", function, n, kFamilyNames[family]);
  syscall(SYS_write, fd, line, length);
  void* frames[32];
  backtrace_symbols_fd(frames, backtrace(frames, 32), static_cast<int>(fd));
  syscall(SYS_close, fd);
  return true;
}

bool fails(Family of, const char* function) {
  if (of != family || !counting.load(std::memory_order_relaxed) || below_zmq > 0) return false;
  const long n = calls.fetch_add(1, std::memory_order_relaxed) + 1;
  if (n != fail_at) return false;
  const Below inside;
  return write_note(function, n);
}

template <typename F>
F* next(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

using Call = long(long, long, long, long, long, long);
using Main = int(int, char**, char**);
Main* real_main = nullptr;

int counted_main(int argc, char** argv, char** envp) {
  counting.store(fail_at > 0 || count_file != nullptr, std::memory_order_relaxed);
  return real_main(argc, argv, envp);
}

__attribute__((constructor)) void choose() {
  const char* program = getenv("FAIL_PROGRAM");
  const char* name = getenv("FAIL_FAMILY");
  note = getenv("FAIL_NOTE");
  if (!program || !name || !note || strcmp(program, program_invocation_short_name) != 0) return;
  for (int f = 0; f < kFamilies; ++f)
    if (strcmp(name, kFamilyNames[f]) == 0) family = static_cast<Family>(f);
  const char* at = getenv("FAIL_AT");
  fail_at = at ? atol(at) : 0;
  count_file = getenv("FAIL_COUNT");
  void* frames[1];
  backtrace(frames, 1);  // loads its library now
}

__attribute__((destructor)) void write_count() {
  if (!counting.exchange(false) || !count_file || !*count_file) return;
  const long fd = syscall(SYS_openat, AT_FDCWD, count_file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  char line[32];
  const int length = snprintf(line, sizeof line, "%ld\n", calls.load());
  syscall(SYS_write, fd, line, length);
  syscall(SYS_close, fd);
}

}  // namespace

extern "C" int shim_start(Main* main, int argc, char** argv, void (*init)(), void (*fini)(), void (*rtld)(),
                          void* stack) __asm__("__libc_start_main");
extern "C" int shim_start(Main* main, int argc, char** argv, void (*init)(), void (*fini)(), void (*rtld)(),
                          void* stack) {
  real_main = main;
  return next<decltype(shim_start)>("__libc_start_main")(counted_main, argc, argv, init, fini, rtld, stack);
}

// ---- memory ----

extern "C" void* malloc(size_t size) {
  if (fails(kMemory, "malloc")) return errno = ENOMEM, nullptr;
  return __libc_malloc(size);
}
extern "C" void* calloc(size_t count, size_t size) {
  if (fails(kMemory, "calloc")) return errno = ENOMEM, nullptr;
  return __libc_calloc(count, size);
}
extern "C" void* realloc(void* old, size_t size) {
  if (fails(kMemory, "realloc")) return errno = ENOMEM, nullptr;
  return __libc_realloc(old, size);
}
extern "C" void* aligned_alloc(size_t alignment, size_t size) {
  if (fails(kMemory, "aligned_alloc")) return errno = ENOMEM, nullptr;
  return __libc_memalign(alignment, size);
}
extern "C" int posix_memalign(void** out, size_t alignment, size_t size) {
  if (fails(kMemory, "posix_memalign")) return ENOMEM;
  *out = __libc_memalign(alignment, size);
  return *out ? 0 : ENOMEM;
}

// ---- calls that answer -1 and errno ----

#define FAILING(FAMILY, NAME, ERROR, RESULT)                                      \
  extern "C" long shim_##NAME(long, long, long, long, long, long) __asm__(#NAME); \
  extern "C" long shim_##NAME(long a, long b, long c, long d, long e, long f) {   \
    static Call* const real = next<Call>(#NAME);                                  \
    if (fails(FAMILY, #NAME)) return errno = ERROR, RESULT;                       \
    return real(a, b, c, d, e, f);                                                \
  }

FAILING(kMemory, mmap, ENOMEM, -1)
FAILING(kFiles, open, EMFILE, -1)
FAILING(kFiles, openat, EMFILE, -1)
FAILING(kFiles, fopen, EMFILE, 0)
FAILING(kFiles, fdopen, ENOMEM, 0)
FAILING(kFiles, read, EIO, -1)
FAILING(kFiles, pread, EIO, -1)
FAILING(kFiles, write, ENOSPC, -1)
FAILING(kFiles, writev, ENOSPC, -1)
FAILING(kFiles, pwrite, ENOSPC, -1)
FAILING(kFiles, fstat, EIO, -1)
FAILING(kFiles, stat, EIO, -1)
FAILING(kFiles, lstat, EIO, -1)
FAILING(kFiles, statvfs, EIO, -1)
FAILING(kFiles, ftruncate, ENOSPC, -1)
FAILING(kFiles, memfd_create, EMFILE, -1)
FAILING(kFiles, mkdir, ENOSPC, -1)
FAILING(kFiles, rename, ENOSPC, -1)
FAILING(kFiles, chmod, EPERM, -1)
FAILING(kFiles, fchmod, EPERM, -1)
FAILING(kFiles, fsync, EIO, -1)
FAILING(kFiles, flock, ENOLCK, -1)
FAILING(kFiles, unlink, EIO, -1)
FAILING(kDescriptors, socket, EMFILE, -1)
FAILING(kDescriptors, socketpair, EMFILE, -1)
FAILING(kDescriptors, bind, EADDRINUSE, -1)
FAILING(kDescriptors, listen, ENOBUFS, -1)
FAILING(kDescriptors, connect, EAGAIN, -1)
FAILING(kDescriptors, getsockopt, ENOBUFS, -1)
FAILING(kDescriptors, setsockopt, ENOBUFS, -1)
FAILING(kDescriptors, epoll_create1, EMFILE, -1)
FAILING(kDescriptors, epoll_ctl, ENOSPC, -1)
FAILING(kDescriptors, eventfd, EMFILE, -1)
FAILING(kDescriptors, signalfd, EMFILE, -1)
FAILING(kDescriptors, inotify_init1, EMFILE, -1)
FAILING(kDescriptors, inotify_add_watch, ENOSPC, -1)
FAILING(kDescriptors, timerfd_create, EMFILE, -1)
FAILING(kDescriptors, timerfd_settime, ENOMEM, -1)
FAILING(kDescriptors, pipe2, EMFILE, -1)
FAILING(kDescriptors, dup, EMFILE, -1)
FAILING(kDescriptors, dup2, EMFILE, -1)
FAILING(kDescriptors, fcntl, EMFILE, -1)
FAILING(kMessages, sendmsg, ENOBUFS, -1)
FAILING(kMessages, recvmsg, ENOMEM, -1)
FAILING(kMessages, send, ENOBUFS, -1)
FAILING(kMessages, recv, ENOMEM, -1)
FAILING(kMessages, poll, ENOMEM, -1)
FAILING(kMessages, ppoll, ENOMEM, -1)
FAILING(kThreads, fork, EAGAIN, -1)
FAILING(kThreads, execv, ENOMEM, -1)
FAILING(kThreads, sched_setaffinity, EPERM, -1)
FAILING(kThreads, setpriority, EPERM, -1)

extern "C" int shim_spawn(long, long, long, long, long, long) __asm__("posix_spawnp");
extern "C" int shim_spawn(long a, long b, long c, long d, long e, long f) {
  if (fails(kThreads, "posix_spawnp")) return EAGAIN;
  return static_cast<int>(next<Call>("posix_spawnp")(a, b, c, d, e, f));
}

// Only what makes or passes descriptors: a futex call is no request that could be refused.
extern "C" long shim_syscall(long number, ...) __asm__("syscall");
extern "C" long shim_syscall(long number, ...) {
  static auto* const real = next<long(long, ...)>("syscall");
  __builtin_va_list list;
  __builtin_va_start(list, number);
  long v[6];
  for (long& value : v) value = __builtin_va_arg(list, long);
  __builtin_va_end(list);
  if (number == SYS_pidfd_open && fails(kThreads, "pidfd_open")) return errno = EMFILE, -1;
  if (number == SYS_accept4 && fails(kDescriptors, "accept4")) return errno = ENFILE, -1;
  return real(number, v[0], v[1], v[2], v[3], v[4], v[5]);
}

// ---- threads; those of ZeroMQ are marked ----

namespace {

struct Start {
  void* (*body)(void*);
  void* argument;
};

void* run_below(void* raw) {
  const Start start = *static_cast<Start*>(raw);
  free(raw);
  ++below_zmq;
  return start.body(start.argument);
}

}  // namespace

extern "C" int shim_thread(void*, const void*, void* (*)(void*), void*) __asm__("pthread_create");
extern "C" int shim_thread(void* thread, const void* attributes, void* (*body)(void*), void* argument) {
  static auto* const real = next<decltype(shim_thread)>("pthread_create");
  if (fails(kThreads, "pthread_create")) return EAGAIN;
  if (below_zmq == 0) return real(thread, attributes, body, argument);
  auto* start = static_cast<Start*>(__libc_malloc(sizeof(Start)));
  *start = {body, argument};
  return real(thread, attributes, run_below, start);
}

// ---- ZeroMQ ----

#define BELOW_ZMQ(NAME)                                                           \
  extern "C" long shim_##NAME(long, long, long, long, long, long) __asm__(#NAME); \
  extern "C" long shim_##NAME(long a, long b, long c, long d, long e, long f) {   \
    static Call* const real = next<Call>(#NAME);                                  \
    const Below below;                                                            \
    return real(a, b, c, d, e, f);                                                \
  }

BELOW_ZMQ(zmq_ctx_new)
BELOW_ZMQ(zmq_ctx_set)
BELOW_ZMQ(zmq_ctx_term)
BELOW_ZMQ(zmq_ctx_shutdown)
BELOW_ZMQ(zmq_socket)
BELOW_ZMQ(zmq_setsockopt)
BELOW_ZMQ(zmq_getsockopt)
BELOW_ZMQ(zmq_connect)
BELOW_ZMQ(zmq_bind)
BELOW_ZMQ(zmq_close)
BELOW_ZMQ(zmq_send)
BELOW_ZMQ(zmq_msg_recv)
BELOW_ZMQ(zmq_msg_close)
BELOW_ZMQ(zmq_poll)
