#include "shm/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/interprocess/detail/os_file_functions.hpp>
#include <boost/interprocess/exceptions.hpp>
#include <cerrno>

#include "shm/system_error.h"

namespace ringmaster::shm {
namespace {

namespace ipc = boost::interprocess;

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// What mapped_region wants of an object it maps.
struct Mappable {
  int fd;
  ipc::mapping_handle_t get_mapping_handle() const {
    return ipc::ipcdetail::mapping_handle_from_file_handle(fd);
  }
};

Result<ipc::mapped_region> map(int fd, size_t bytes) {
  try {
    return ipc::mapped_region(Mappable{fd}, ipc::read_write, 0, bytes);
  } catch (const ipc::interprocess_exception& e) {
    return system_error("map a memory file of " + std::to_string(bytes) + " bytes", e.get_native_error());
  }
}

// MFD_NOEXEC_SEAL of Linux 6.3, which Debian 12's headers lack: hosts may be told to refuse memory files
// without it.
constexpr unsigned kNoExecSeal = 0x0008;

int make_memfd(const std::string& name) {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  const int fd = memfd_create(name.c_str(), kFlags | kNoExecSeal);
  return fd < 0 && errno == EINVAL ? memfd_create(name.c_str(), kFlags) : fd;
}

}  // namespace

MemoryFile::MemoryFile(UniqueFd fd, ipc::mapped_region region)
    : fd_(std::move(fd)), region_(std::move(region)) {}

Result<MemoryFile> MemoryFile::create(const std::string& name, size_t bytes) {
  UniqueFd fd(make_memfd(name));
  if (!fd) return system_error("create memory file '" + name + "'", errno);
  if (bytes == 0 || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return system_error("size memory file '" + name + "' to " + std::to_string(bytes) + " bytes",
                        bytes == 0 ? EINVAL : errno);
  }
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0)
    return system_error("seal memory file '" + name + "'", errno);
  auto region = map(fd.get(), bytes);
  if (!region) return std::move(region).error();
  return MemoryFile(std::move(fd), std::move(region).value());
}

Result<MemoryFile> MemoryFile::attach(UniqueFd fd, size_t bytes) {
  // Seals first: a size that can still change proves nothing.
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 && errno != EINVAL && errno != EBADF)
    return system_error("read the seals of the received memory file", errno);
  if (seals < 0) {
    return Error{Code::kMalformed,
                 "the received descriptor is not a memory file; it must come from MemoryFile::create"};
  }
  if ((seals & kSeals) != kSeals) {
    return Error{Code::kMalformed, "the received memory file lacks seals: it has " + std::to_string(seals) +
                                       ", needed are at least " + std::to_string(kSeals) +
                                       " (shrink, grow, seal); its owner could take pages away under us"};
  }
  struct stat status {};
  if (fstat(fd.get(), &status) != 0) return system_error("stat of the received memory file", errno);
  if (status.st_size < 0 || static_cast<uint64_t>(status.st_size) != bytes) {
    return Error{Code::kMalformed, "the received memory file has " + std::to_string(status.st_size) +
                                       " bytes instead of " + std::to_string(bytes)};
  }
  auto region = map(fd.get(), bytes);
  if (!region) return std::move(region).error();
  // What is given back by the death of its holder must not live on in a child that the holder forked.
  if (madvise(region->get_address(), bytes, MADV_DONTFORK) != 0)
    return system_error("keep a memory file from forked children", errno);
  return MemoryFile(std::move(fd), std::move(region).value());
}

}  // namespace ringmaster::shm
