#include "base/unhandled.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>

namespace ringmaster {
namespace {

template <typename Exception>
void throw_unhandled(Exception exception) {
  end_process_on_unhandled_exceptions();
  std::thread([&]() { throw exception; }).join();
}

TEST(UnhandledDeathTest, OutOfMemoryOnAnyThreadEndsTheProcessWithALineAndCodeOne) {
  EXPECT_EXIT(throw_unhandled(std::bad_alloc()), testing::ExitedWithCode(1), "^out of memory: .*kv_memory");
}

TEST(UnhandledDeathTest, AThreadThatTheSystemRefusesIsNamedWithTheLimit) {
  const std::system_error refused(std::make_error_code(std::errc::resource_unavailable_try_again));
  EXPECT_EXIT(throw_unhandled(refused), testing::ExitedWithCode(1), "no further thread .*ulimit -u");
}

TEST(UnhandledDeathTest, WhatALibraryThrowsIsQuotedAndABugLeavesACore) {
  EXPECT_EXIT(throw_unhandled(std::runtime_error("no luck")), testing::ExitedWithCode(1), "without: no luck");
  EXPECT_EXIT(throw_unhandled(std::out_of_range("at 7")), testing::KilledBySignal(SIGABRT), "a bug: at 7");
}

}  // namespace
}  // namespace ringmaster
