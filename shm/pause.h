// A hint to the core that this is a busy wait: frees the sibling thread and saves power.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace ringmaster::shm {

#if defined(__x86_64__)
inline void cpu_pause() {
  __builtin_ia32_pause();
}
#elif defined(__aarch64__)
inline void cpu_pause() {
  asm volatile("yield");
}
#else
inline void cpu_pause() {}
#endif

}  // namespace ringmaster::shm
