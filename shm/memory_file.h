// A sealed, nameless memory file and its mapping: created here or received as a descriptor. Sealed against
// shrinking and growing, so a peer cannot take pages away under a reader (no SIGBUS). Nothing is left in
// /dev/shm. Move-only; unmaps and closes in the destructor.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/interprocess/mapped_region.hpp>
#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "base/status.h"
#include "base/unique_fd.h"

namespace ringmaster::shm {

using ringmaster::UniqueFd;

class MemoryFile {
 public:
  // `name` is only for /proc/PID/maps.
  static Result<MemoryFile> create(const std::string& name, size_t bytes);
  // Checks that the file is sealed and has exactly `bytes`. A forked child does not inherit the mapping.
  static Result<MemoryFile> attach(UniqueFd fd, size_t bytes);

  std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(region_.get_address()), region_.get_size()};
  }
  int fd() const { return fd_.get(); }

 private:
  MemoryFile(UniqueFd fd, boost::interprocess::mapped_region region);
  UniqueFd fd_;
  mutable boost::interprocess::mapped_region region_;
};

}  // namespace ringmaster::shm
