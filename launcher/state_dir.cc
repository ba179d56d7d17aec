#include "launcher/state_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "shm/system_error.h"

namespace ringmaster::launcher {
namespace {

namespace fs = std::filesystem;

std::string octal(mode_t mode) {
  char text[8];
  std::snprintf(text, sizeof text, "%04o", static_cast<unsigned>(mode & 07777));
  return text;
}

// Missing parents are made private too: the default's parent holds the clusters of one user.
Status make_directory(const std::string& dir) {
  const fs::path parent = fs::path(dir).parent_path();
  struct stat info {};
  if (!parent.empty() && lstat(parent.c_str(), &info) != 0) {
    const Status made = make_directory(parent.string());
    if (!made.ok()) return made;
  }
  if (mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST)
    return shm::system_error(dir + " cannot be created", errno);
  return ok_status();
}

Status check_parent(const std::string& dir) {
  const std::string parent = fs::path(dir).parent_path().string();
  struct stat info {};
  if (stat(parent.c_str(), &info) != 0) return shm::system_error(parent, errno);
  const bool others_write = (info.st_mode & 0022) != 0;
  const bool sticky = (info.st_mode & S_ISVTX) != 0;
  if ((info.st_uid == geteuid() || info.st_uid == 0) && (!others_write || sticky)) return ok_status();
  return Error{Code::kPermissionDenied, "the state directory " + dir +
                                            " is not safe: other users can replace it in " + parent +
                                            " (owner " + std::to_string(info.st_uid) + ", mode " +
                                            octal(info.st_mode) + "); choose another state_dir"};
}

Status check_directory(const std::string& dir) {
  struct stat info {};
  if (lstat(dir.c_str(), &info) != 0) return shm::system_error(dir, errno);
  if (!S_ISDIR(info.st_mode))
    return Error{Code::kAlreadyExists, "the state directory " + dir + " is something else than a directory"};
  if (info.st_uid != geteuid())
    return Error{Code::kPermissionDenied, "the state directory " + dir + " belongs to user " +
                                              std::to_string(info.st_uid) + ", not to " +
                                              std::to_string(geteuid())};
  if ((info.st_mode & 0077) != 0)
    return Error{Code::kPermissionDenied, "the state directory " + dir + " has mode " + octal(info.st_mode) +
                                              "; allowed: 0700 (chmod 700 " + dir + ")"};
  return check_parent(dir);
}

bool same_file(int fd, const std::string& path) {
  struct stat held {
  }, named{};
  return fstat(fd, &held) == 0 && stat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino &&
         held.st_dev == named.st_dev;
}

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t put = write(fd, text.data(), text.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    text.remove_prefix(static_cast<size_t>(put));
  }
  return true;
}

}  // namespace

Status create_state_dir(const std::string& dir) {
  for (const std::string& each : {dir, dir + "/logs"}) {
    Status made = make_directory(each);
    if (made.ok()) made = check_directory(each);
    if (!made.ok()) return made;
  }
  return ok_status();
}

Result<UniqueFd> lock_state_dir(const std::string& dir) {
  const std::string path = dir + "/lock";
  // A former holder may remove the file between our open and our flock: then the lock is on a file without a
  // name.
  constexpr int kTries = 10;
  for (int i = 0; i < kTries; ++i) {
    UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd) return shm::system_error(path + " cannot be opened", errno);
    if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return shm::system_error(path + " cannot be locked", errno);
      return Error{Code::kAlreadyExists, "the state directory " + dir +
                                             " is in use by a running cluster (`ringmaster status` shows it, "
                                             "`ringmaster down` ends it)"};
    }
    if (same_file(fd.get(), path)) return fd;
  }
  return Error{Code::kUnavailable, path + " is removed again and again by somebody else"};
}

bool state_dir_is_locked(const std::string& dir) {
  const UniqueFd fd(open((dir + "/lock").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  return fd && flock(fd.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

std::vector<std::string> remove_runtime_files(const std::string& dir,
                                              const std::vector<std::string>& sockets) {
  std::vector<std::string> paths = sockets;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir, error))
    if (entry.is_socket(error)) paths.push_back(entry.path().string());
  for (const char* name :
       {"/supervisor.json", "/supervisor.json.new", "/cluster.yaml.new", "/incarnation.new", "/lock"})
    paths.push_back(dir + name);
  std::vector<std::string> removed;
  for (const std::string& path : paths)
    if (unlink(path.c_str()) == 0) removed.push_back(path);
  return removed;
}

std::string next_version(const std::string& path) {
  return path + ".new";
}

Status write_file(const std::string& path, std::string_view text) {
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return shm::system_error(path + " cannot be opened", errno);
  if (!write_all(fd.get(), text) || ftruncate(fd.get(), static_cast<off_t>(text.size())) != 0)
    return shm::system_error(path + " cannot be written", errno);
  return ok_status();
}

Status replace_file(const std::string& path, std::string_view text) {
  const std::string next = next_version(path);
  if (Status written = write_file(next, text); !written.ok()) return written;
  if (rename(next.c_str(), path.c_str()) != 0) return shm::system_error(path + " cannot be replaced", errno);
  return ok_status();
}

Status write_atomically(const std::string& path, std::string_view text) {
  Status replaced = replace_file(path, text);
  if (!replaced.ok()) unlink(next_version(path).c_str());
  return replaced;
}

}  // namespace ringmaster::launcher
