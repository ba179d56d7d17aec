# Build settings and the three functions every folder uses:
#   rm_library(NAME [DEPS ...])            all *.cc of this folder but main.cc
#   rm_process(NAME DEPS ...)              main.cc of this folder -> build/bin/NAME
#   rm_tests(NAME [DEPS ...] [TIMEOUT s])  all *_test.cc of this folder -> one GoogleTest binary
# Sources are found by pattern, so a file that exists is built and a test that exists runs.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g")
if(RINGMASTER_SANITIZE)
  set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1")  # their reports name lines, not variables
endif()

find_program(RINGMASTER_CCACHE ccache)
if(RINGMASTER_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${RINGMASTER_CCACHE})
endif()

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(spdlog REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(Boost 1.74 REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
find_program(FLATC flatc REQUIRED)
# Not by pkg-config: libzmq's lists the headers of its own dependencies with -isystem, which CMake puts elsewhere on the
# command line from its second run on, so that everything would be built twice.
find_path(ZMQ_INCLUDE_DIR zmq.hpp REQUIRED)
find_library(ZMQ_LIBRARY zmq REQUIRED)
add_library(zmq INTERFACE)
target_include_directories(zmq SYSTEM INTERFACE ${ZMQ_INCLUDE_DIR})
target_link_libraries(zmq INTERFACE ${ZMQ_LIBRARY})

add_library(rm_flags INTERFACE)
# Designated initialisers leave defaults out. Not for nvcc, whose host pass brings warnings of its own making.
target_compile_options(rm_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wnon-virtual-dtor;-Wvla;-Werror;-Wno-missing-field-initializers;-fno-omit-frame-pointer>")
target_include_directories(rm_flags INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
target_link_libraries(rm_flags INTERFACE Threads::Threads)
if(RINGMASTER_SANITIZE STREQUAL "address")
  target_compile_options(rm_flags INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=undefined)
  target_link_options(rm_flags INTERFACE -fsanitize=address,undefined)
elseif(RINGMASTER_SANITIZE STREQUAL "thread")
  # g++ 12 warns that TSan does not model atomic_thread_fence; the fences in shm/ are paired with atomics.
  target_compile_options(rm_flags INTERFACE -fsanitize=thread -Wno-tsan)
  target_link_options(rm_flags INTERFACE -fsanitize=thread)
elseif(RINGMASTER_SANITIZE STREQUAL "fuzz")
  # Clang only. Libraries get the counters, and only the targets of tests/fuzz libFuzzer's main.
  target_compile_options(rm_flags INTERFACE -fsanitize=fuzzer-no-link,address,undefined
                                            -fno-sanitize-recover=undefined)
  target_link_options(rm_flags INTERFACE -fsanitize=address,undefined)
elseif(RINGMASTER_SANITIZE)
  message(FATAL_ERROR "RINGMASTER_SANITIZE is '${RINGMASTER_SANITIZE}'; allowed: empty, address, thread, fuzz")
endif()
if(RINGMASTER_SANITIZE)
  target_compile_definitions(rm_flags INTERFACE _GLIBCXX_ASSERTIONS)  # preconditions of span, vector, optional
endif()

function(rm_library name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  list(FILTER sources EXCLUDE REGEX "/main\\.cc$")
  if(sources)
    add_library(${name} STATIC ${sources})
    target_link_libraries(${name} PUBLIC rm_flags ${ARG_DEPS})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE rm_flags ${ARG_DEPS})
  endif()
endfunction()

function(rm_process name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  add_executable(${name} ${CMAKE_CURRENT_SOURCE_DIR}/main.cc)
  target_link_libraries(${name} PRIVATE rm_flags ${ARG_DEPS})
  # For scripts/bundle: built with the run path that holds there. The old kind of it serves the libraries' libraries too.
  target_link_options(${name} PRIVATE LINKER:--disable-new-dtags)
  set_target_properties(${name} PROPERTIES BUILD_WITH_INSTALL_RPATH ON
                        INSTALL_RPATH "$ORIGIN/../lib;/usr/local/cuda/lib64;${CUDAToolkit_LIBRARY_DIR}")
  install(TARGETS ${name} RUNTIME DESTINATION bin COMPONENT ${name})
endfunction()

function(rm_tests name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "DEPS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 60)
  endif()
  if(RINGMASTER_SANITIZE)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 5")  # address: 2 to 4 times slower, thread: 5 to 10, of what takes seconds
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_test.cc)
  if(NOT sources)
    message(FATAL_ERROR "${CMAKE_CURRENT_SOURCE_DIR} has no *_test.cc")
  endif()
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE rm_flags GTest::gtest_main GTest::gmock ${ARG_DEPS})
  target_compile_definitions(${name} PRIVATE RINGMASTER_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                                             RINGMASTER_BINARY_DIR="${CMAKE_BINARY_DIR}"
                                             RINGMASTER_SHARED_DIR="${RINGMASTER_SHARED}")
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT ${ARG_TIMEOUT})
endfunction()
