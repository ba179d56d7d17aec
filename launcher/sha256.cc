#include "launcher/sha256.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <vector>

#include "base/unique_fd.h"
#include "shm/system_error.h"

namespace ringmaster::launcher {

Result<std::string> sha256_of_file(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return shm::system_error(path + " cannot be opened", errno);
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  if (context == nullptr || EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) != 1)
    return Error{Code::kInternal, "SHA-256 is not available in libcrypto"};
  std::vector<char> bytes(1 << 20);
  ssize_t got = 0;
  while ((got = read(fd.get(), bytes.data(), bytes.size())) > 0)
    EVP_DigestUpdate(context.get(), bytes.data(), static_cast<size_t>(got));
  if (got < 0) return shm::system_error(path + " cannot be read", errno);
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_DigestFinal_ex(context.get(), digest, &size);
  std::string hex;
  for (unsigned i = 0; i < size; ++i) {
    hex += "0123456789abcdef"[digest[i] >> 4];
    hex += "0123456789abcdef"[digest[i] & 15];
  }
  return hex;
}

}  // namespace ringmaster::launcher
